"""What is registered between two steps, and no program calls, is refused by name; nothing that was trained is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from torch.optim import optimizer as base
from torch.utils.hooks import RemovableHandle

from detente import bridge
from detente.bridge.private import hooks_at_node
from tests.bridge.between.loops import World, batches, equal, run


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


def at_its_node(world: World) -> Callable[[], None]:
    """As those register who reduce gradients of many processes; the node lives for as long as somebody holds it."""
    parameter = world.model.last.weight
    node = world.more["node"] = torch.autograd.graph.get_gradient_edge(parameter).node
    return node.register_hook(lambda *given: parameter.grad.zero_()).remove


def in_front_of_its_node(world: World) -> Callable[[], None]:
    node = world.more["node"] = torch.autograd.graph.get_gradient_edge(world.model.last.weight).node
    return node.register_prehook(lambda given: tuple(0 * g for g in given)).remove


def of_every_module(world: World) -> Callable[[], None]:
    return register_module_full_backward_hook(lambda module, inner, outer: inner).remove


def in_front_of_every_module(world: World) -> Callable[[], None]:
    return register_module_full_backward_pre_hook(lambda module, outer: outer).remove


def of_the_criterion(world: World) -> Callable[[], None]:
    return world.more["criterion"].register_full_backward_hook(lambda module, inner, outer: inner).remove


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
        at_its_node,
        in_front_of_its_node,
        of_every_module,
        in_front_of_every_module,
        of_the_criterion,
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

    equal(loop, certificate="none", loss=by_a_criterion)


def by_a_criterion(world: World) -> Any:
    criterion = world.more["criterion"] = nn.CrossEntropyLoss()
    return lambda m, b: criterion(m(b["x"]), b["y"])


@pytest.mark.parametrize(
    "change", [at_its_node, of_every_module, of_the_criterion], ids=lambda change: change.__name__
)
def test_it_is_refused_where_it_was_there_first(change: Callable[[World], Callable[[], None]]) -> None:
    removes = []

    def hooked(world: World) -> Any:
        loss = by_a_criterion(world)
        removes.append(change(world))
        return loss

    try:
        with pytest.raises(bridge.Refused, match="hook"):
            run(lambda world: [], bridge=True, loss=hooked)
    finally:
        removes[0]()


def test_looking_for_hooks_leaves_none_behind() -> None:
    """And counts none: who looks before every step would find one every time."""
    parameter = nn.Parameter(torch.ones(3))
    node, before = torch.autograd.graph.get_gradient_edge(parameter).node, RemovableHandle.next_id
    kept = node.register_hook(halves)
    assert [hooks_at_node(parameter) for _ in range(2)] == [[halves], [halves]]
    kept.remove()
    assert hooks_at_node(parameter) == [] and RemovableHandle.next_id == before + 1


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
