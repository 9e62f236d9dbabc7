"""What shows a weight's memory and takes no gradient: its value moves along, and the weight gets nothing of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal, run, stepping

Loss = Callable[[nn.Module, Any], torch.Tensor]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Adam would hide a gradient that is twice as large."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plainly(world: World) -> list[float]:
    return stepping(world, lambda i: None, 5)


def of_a_closure(world: World) -> Loss:
    shown = world.model.last.bias.detach()
    return lambda model, batch: nn.functional.cross_entropy(2 * model(batch["x"]) + shown, batch["y"])


def of_data(world: World) -> Loss:
    shown = world.model.last.bias.data
    return lambda model, batch: nn.functional.cross_entropy(2 * model(batch["x"]) + shown, batch["y"])


def of_a_state(world: World) -> Loss:
    state = world.model.state_dict()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        weight: Any = model.get_parameter("last.weight")
        return cross_entropy(model, batch) + 0.1 * (weight * state["last.weight"]).sum()

    return loss


def of_a_teacher(world: World) -> Loss:
    """Whose memory is the student's: it is always the student of now, and a constant to the gradient."""
    teacher = copy.deepcopy(world.model).eval()
    for theirs, mine in zip(teacher.parameters(), world.model.parameters(), strict=True):
        theirs.data = mine.data
        theirs.requires_grad_(False)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(model, batch) + (model(batch["x"]) - teacher(batch["x"])).square().mean()

    return loss


def of_a_tuple(world: World) -> Loss:
    """Beside the parameter itself, which takes one from there."""
    both = (world.model.last.bias, world.model.last.bias.detach())
    return lambda model, batch: nn.functional.cross_entropy(
        model(batch["x"]) + both[0] * (1 + both[1]), batch["y"]
    )


@pytest.mark.parametrize("loss", [of_a_closure, of_data, of_a_state, of_a_teacher, of_a_tuple])
@pytest.mark.parametrize("certificate", ["full", "none"])
def test_it_takes_no_gradient(loss: Any, certificate: str) -> None:
    equal(plainly, loss=loss, optimizer=sgd, certificate=certificate)


class Shifted(Net):
    """With a shift that no optimizer trains, registered or not."""

    shift: Any

    def __init__(self, registered: bool = True) -> None:
        super().__init__()
        if registered:
            self.shift = nn.Parameter(torch.zeros(3), requires_grad=False)
        else:
            self.shift = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.shift


class Twin(Shifted):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(self.last.bias.data, requires_grad=False)


def test_a_frozen_twin_in_the_module() -> None:
    equal(plainly, build=Twin, optimizer=sgd)


def test_an_attribute_shows_a_weight_later() -> None:
    def shows(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 2:
                world.model.shift = world.model.last.bias.detach()

        return stepping(world, change, 6)

    equal(shows, build=lambda: Shifted(registered=False), optimizer=sgd)


@pytest.mark.parametrize("optimizer", [sgd, lambda p: torch.optim.AdamW(p, lr=1e-2)])
def test_a_parameter_is_bound_to_a_weight_and_apart_again(optimizer: Any) -> None:
    """The program had two values where torch had one."""

    def binds(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 2:
                world.model.shift.data = world.model.last.bias.data
            if i == 5:
                world.model.shift.data = world.model.shift.data.clone()

        return stepping(world, change, 7)

    equal(binds, build=Shifted, optimizer=optimizer)


def test_two_trained_ones_are_refused_later_too() -> None:
    def binds(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 2:
                world.model.last.bias.data = world.model.shift.data

        return stepping(world, change, 4)

    def trained() -> nn.Module:
        model = Shifted()
        model.shift.requires_grad_(True)
        return model

    with pytest.raises(bridge.Refused, match="two parameters of one memory"):
        run(binds, bridge=True, build=trained, optimizer=sgd, example=batches()[0])
