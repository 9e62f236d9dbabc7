"""What is registered between two steps, and no program calls, is refused by name; nothing that was trained is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import optimizer as base

from detente import bridge
from tests.bridge.between.loops import World, batches, equal


def halves(optimizer: Any, given: Any, named: Any) -> None:
    with torch.no_grad():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.mul_(0.5)


def of_a_parameter(world: World) -> Callable[[], None]:
    return world.model.last.weight.register_hook(lambda gradient: 0 * gradient).remove


def after_its_gradient(world: World) -> Callable[[], None]:
    def zeroes(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.zero_()

    return world.model.last.weight.register_post_accumulate_grad_hook(zeroes).remove


def before_the_optimizer(world: World) -> Callable[[], None]:
    return world.optimizer.register_step_pre_hook(halves).remove


def behind_the_optimizer(world: World) -> Callable[[], None]:
    return world.optimizer.register_step_post_hook(halves).remove


def behind_every_optimizer(world: World) -> Callable[[], None]:
    return base.register_optimizer_step_post_hook(halves).remove


def in_the_place_of_its_step(world: World) -> Callable[[], None]:
    real = world.optimizer.step

    def step() -> None:
        real()
        halves(world.optimizer, (), {})

    world.optimizer.step = step  # type: ignore[method-assign]
    return lambda: delattr(world.optimizer, "step")


@pytest.mark.parametrize(
    "change",
    [
        of_a_parameter,
        after_its_gradient,
        before_the_optimizer,
        behind_the_optimizer,
        behind_every_optimizer,
        in_the_place_of_its_step,
    ],
    ids=lambda change: change.__name__,
)
def test_it_is_refused_and_gone_again_the_training_goes_on(
    change: Callable[[World], Callable[[], None]],
) -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(4)):
            if i == 2 and "compiled" in world.more:
                remove = change(world)
                try:
                    with pytest.raises(bridge.Refused, match=r"hook|step was replaced"):
                        world.step(batch)
                finally:
                    remove()
            losses.append(world.step(batch))
        return losses

    equal(loop, certificate="none")


def test_a_scheduler_that_is_made_between_steps_is_none_of_them() -> None:
    def loop(world: World) -> list[float]:
        losses = [world.step(batches()[0])]
        scheduler = torch.optim.lr_scheduler.ExponentialLR(world.optimizer, 0.5)
        for batch in batches(3):
            losses.append(world.step(batch))
            scheduler.step()
        return losses

    world = equal(loop, certificate="none")
    assert len(world.more["compiled"].programs) == 1
