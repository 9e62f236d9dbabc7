"""Not a value is another one, but the table that holds it; or a value is equal, and of another kind."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from tests.bridge.between.loops import Net, World, batches, equal


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def at(change: Callable[[World], None], when: int = 4) -> Callable[[World], list[float]]:
    """A loop that does ``change`` before that step."""

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches()):
            if i == when:
                change(world)
            losses.append(world.step(batch))
        return losses

    loop.__name__ = change.__name__
    return loop


def halves(module: nn.Module, given: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 0.5


def another_table_of_hooks(world: World) -> None:
    world.model.last._forward_hooks = OrderedDict()
    world.model.last.register_forward_hook(halves)


def an_equal_table_of_hooks(world: World) -> None:
    world.model.last._forward_hooks = OrderedDict()


def attributes_past_the_module(world: World) -> None:
    vars(world.model)["beta"] = 0.25
    world.model.__dict__.update(cfg={"w": 0.1, "more": [0.3, 0.4]})


def a_flag_past_the_module(world: World) -> None:
    vars(world.model.norm)["training"] = False


def a_list_that_shrinks(world: World) -> None:
    del world.model.cfg["more"][0]
    world.model.cfg["more"].append(0.7)


def a_part_under_its_name(world: World) -> None:
    """As ``setattr`` would, past it."""
    torch.manual_seed(7)
    world.model._modules["drop"] = nn.Dropout(0.0)
    world.model._modules["norm"].eps = 0.1


@pytest.mark.parametrize(
    "change",
    [
        another_table_of_hooks,
        an_equal_table_of_hooks,
        attributes_past_the_module,
        a_flag_past_the_module,
        a_list_that_shrinks,
        a_part_under_its_name,
    ],
    ids=lambda c: c.__name__,
)
def test_another_table_is_seen(change: Any) -> None:
    equal(at(change))


class Whole(nn.Module):
    """Tokens times a number: of integers and a float other numbers come than of integers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.by = nn.Linear(6, 3), 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounds = (x * 4).round().to(torch.int64) * self.by
        return self.last(rounds / 2 if rounds.is_floating_point() else (rounds // 2).float())


def a_float_that_equals(world: World) -> None:
    world.model.by = 3.0


def test_an_equal_value_of_another_kind_is_seen() -> None:
    equal(at(a_float_that_equals), build=Whole)


def other_tensors(world: World) -> None:
    """The whole table of parameters: what forward reads is trained by nobody."""
    part = world.model.last
    vars(part)["_parameters"] = {n: nn.Parameter(p.detach() * 0.5) for n, p in part._parameters.items()}


def another_ones_attributes(world: World) -> None:
    torch.manual_seed(11)
    vars(world.model.last).update(vars(nn.Linear(16, 3)))


def another_parameter_in_its_group(world: World) -> None:
    """As many as before: one is trained no more, and another one is."""
    world.optimizer.param_groups[0]["params"][0] = world.model.norm.weight


def another_order_in_its_group(world: World) -> None:
    world.optimizer.param_groups[0]["params"].reverse()


def two(parameters: Any) -> torch.optim.Optimizer:
    first, _, bias, *rest = parameters
    return torch.optim.AdamW([first, bias, *rest], lr=1e-2)


@pytest.mark.parametrize(
    ("change", "optimizer"),
    [
        (other_tensors, None),
        (another_ones_attributes, None),
        (another_parameter_in_its_group, two),
        (another_order_in_its_group, None),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_other_tensors_in_a_table_are_eagers_or_refused(change: Any, optimizer: Any) -> None:
    how = {"optimizer": optimizer} if optimizer else {}
    try:
        equal(at(change), build=Net, **how)
    except bridge.Refused as refused:
        assert {reason.code for reason in refused.reasons} <= {"optimizer", "module-changed"}, refused
