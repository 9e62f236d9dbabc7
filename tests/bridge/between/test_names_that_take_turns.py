"""One attribute goes and another comes between two steps: the table is as long as before."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune

from tests.bridge.between.loops import Net, World, equal, stepping


class Warm(Net):
    """Its class says how warm it is, and the loop may say it of the object."""

    warmth = 1.0
    scratch: Any

    def __init__(self) -> None:
        super().__init__()
        self.scratch = "of the loop's own"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.warmth


def test_an_attribute_of_the_loops_goes_as_one_of_forwards_comes() -> None:
    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 2:
                del world.model.scratch
                world.model.warmth = 0.5
            if i == 4:
                del world.model.warmth
                world.model.scratch = "again"

        return stepping(world, change, 6)

    equal(loop, build=Warm)


class Settings:
    """Nothing of its own: what is asked of it, its class says."""

    warmth = 1.0
    note: Any


class Set(Net):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.settings.rate = 1.0  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.settings.warmth * self.settings.rate  # type: ignore[attr-defined]


def test_an_attribute_that_came_in_training_goes_as_one_of_forwards_comes() -> None:
    def loop(world: World) -> list[float]:
        settings: Any = world.model.settings

        def change(i: int) -> None:
            if i == 1:
                settings.note = "of the loop's own"
            if i == 3:
                del settings.note
                settings.warmth = 0.5

        return stepping(world, change, 6)

    equal(loop, build=Set)


class Keeps(Net):
    """Leaves its hidden values for the loop, unless it is told not to."""

    keeps = True
    hidden: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keeps:
            self.hidden = self.first(x).detach()
        return super().forward(x)


def test_what_forward_leaves_is_taken_away_as_it_is_told_to_leave_nothing() -> None:
    def loop(world: World) -> list[float]:
        def change(i: int) -> float:
            if i == 2:
                world.model.keeps = False
                del world.model.hidden
            hidden = getattr(world.model, "hidden", None)
            return 0.0 if hidden is None else float(hidden.norm())

        return stepping(world, change, 5)

    equal(loop, build=Keeps)


def test_a_pruned_weight_becomes_a_parameter_again() -> None:
    """The hook's attribute is gone, and a parameter has that name: it was refused as one that a program fills."""

    def loop(world: World) -> list[float]:
        def change(i: int) -> float:
            first: nn.Module = world.model.first
            if i in (1, 5):
                prune.l1_unstructured(first, "weight", amount=0.3)
            if i in (3, 7):
                prune.remove(first, "weight")
            return float((first.get_parameter("weight_orig" if i in (1, 2, 5, 6) else "weight") == 0).sum())

        return stepping(world, change)

    equal(loop, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
