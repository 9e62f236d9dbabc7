"""What only a weak reference leads to goes when the user lets it go, and the loss sees that it is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.bridge.between.loops import World, cross_entropy, equal, stepping

Loss = Callable[[nn.Module, Any], torch.Tensor]


class Part:
    def __init__(self, weight: float = 2.0) -> None:
        self.weight, self.tensor = weight, torch.ones(3)

    def asked(self) -> float:
        return self.weight


class Slotted:
    __slots__ = ("__weakref__", "weight")

    def __init__(self) -> None:
        self.weight = 2.0


def held(world: World, part: Any) -> Any:
    """The loop holds it, and the loss does not."""
    world.more["part"] = [part]
    return part


def by_reference(world: World) -> Loss:
    found = weakref.ref(held(world, Part()))
    return lambda m, b: cross_entropy(m, b) * (0.5 if (part := found()) is None else part.weight)


def by_reference_to_slots(world: World) -> Loss:
    found = weakref.ref(held(world, Slotted()))
    return lambda m, b: cross_entropy(m, b) * (0.5 if (part := found()) is None else part.weight)


def by_method(world: World) -> Loss:
    found = weakref.WeakMethod(held(world, Part()).asked)
    return lambda m, b: cross_entropy(m, b) * (0.5 if (asked := found()) is None else asked())


def by_set(world: World) -> Loss:
    parts = weakref.WeakSet([held(world, Part())])

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        y = model(batch["x"])
        for part in parts:
            y = y * part.tensor * part.weight
        return nn.functional.cross_entropy(y, batch["y"])

    return loss


def by_key(world: World) -> Loss:
    parts = weakref.WeakKeyDictionary({held(world, Part()): 2.0})
    return lambda m, b: cross_entropy(m, b) * (1 + sum(parts.values()))


def by_value(world: World) -> Loss:
    parts = weakref.WeakValueDictionary({"a": held(world, Part())})
    return lambda m, b: cross_entropy(m, b) * (1 + len(parts))


@pytest.mark.parametrize("loss", [by_reference, by_reference_to_slots, by_method, by_set, by_key, by_value])
def test_it_goes(loss: Any) -> None:
    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 2:
                world.more["part"][0].weight = 1.5
            if i == 4:
                world.more["part"].clear()

        return stepping(world, change, 6)

    equal(loop, loss=loss)


def test_a_slot_that_is_emptied() -> None:
    """It was a KeyError of the step's own."""

    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 2:
                del world.more["part"][0].weight
            if i == 4:
                world.more["part"][0].weight = 3.0

        return stepping(world, change, 6)

    def asks(world: World) -> Loss:
        part = held(world, Slotted())
        return lambda m, b: cross_entropy(m, b) * getattr(part, "weight", 0.5)

    equal(loop, loss=asks)
