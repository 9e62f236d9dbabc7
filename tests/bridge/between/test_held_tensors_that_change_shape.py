"""What the loss holds may be cast, or grow, in place between two steps: another program, and not JAX's own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.bridge.between.loops import World, batches, cross_entropy, equal

F = nn.functional
Change = Callable[[torch.Tensor], None]


def teaches(world: World) -> Any:
    torch.manual_seed(1)
    teacher = world.more["teacher"] = (
        nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).requires_grad_(False).eval()
    )

    def loss(model: Any, batch: Any) -> torch.Tensor:
        wanted = teacher(batch["x"].to(next(teacher.parameters()).dtype)).float()
        return cross_entropy(model, batch) + 0.5 * (model(batch["x"]) - wanted).square().mean()

    return loss


def test_a_teacher_is_cast() -> None:
    def casts(world: World) -> list[float]:
        found = []
        for i, batch in enumerate(batches(6)):
            if i in (2, 4):
                (world.more["teacher"].double if i == 2 else world.more["teacher"].float)()
            found.append(world.step(batch))
        return found

    equal(casts, loss=teaches)


def banks(world: World) -> Any:
    bank = world.more["bank"] = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))

    def loss(model: Any, batch: Any) -> torch.Tensor:
        made = model(batch["x"])
        return F.cross_entropy(made, batch["y"]) + 0.3 * (made @ bank.t()).logsumexp(1).mean()

    return loss


def through_data(bank: torch.Tensor) -> None:
    bank.data = torch.cat([bank.data, torch.full((2, 3), 0.5)])


def by_set(bank: torch.Tensor) -> None:
    bank.set_(torch.cat([bank, torch.full((2, 3), 0.5)]))


@pytest.mark.parametrize("grow", [through_data, by_set], ids=lambda f: f.__name__)
def test_a_bank_grows(grow: Change) -> None:
    def grows(world: World) -> list[float]:
        found = []
        for i, batch in enumerate(batches(6)):
            if i in (2, 4):
                grow(world.more["bank"])
            found.append(world.step(batch))
        return found

    equal(grows, loss=banks)


def test_one_of_the_same_size_is_the_same_program() -> None:
    def binds(world: World) -> list[float]:
        found = []
        for i, batch in enumerate(batches(4)):
            world.more["bank"].data = torch.full((4, 3), 0.1 * i)
            found.append(world.step(batch))
        return found

    assert len(equal(binds, loss=banks).more["compiled"].programs) == 1
