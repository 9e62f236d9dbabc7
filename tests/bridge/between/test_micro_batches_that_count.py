"""What forward writes to Python's values is written by each micro-batch of a step, as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente import bridge
from tests.bridge.between.loops import batches, cross_entropy


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)
        self.calls, self.seen, self.rate, self.ready = 0, {"rows": 0}, 1.0, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.note(x)
        return self.body(x)

    def note(self, x: torch.Tensor) -> None:
        self.calls += 1

    @property
    def told(self) -> list[float]:
        return [float(self.calls), float(self.seen["rows"]), self.rate, float(self.ready)]


class Rows(Counts):
    """Two that count, and one that is written once."""

    def note(self, x: torch.Tensor) -> None:
        self.calls -= 2
        self.seen["rows"] += len(x)
        self.ready = True


class Halves(Counts):
    """A float is followed through all of them."""

    def note(self, x: torch.Tensor) -> None:
        self.rate *= 0.5


class Fresh(Counts):
    def note(self, x: torch.Tensor) -> None:
        self.seen["fresh"] = self.seen.get("fresh", 0) + 1

    @property
    def told(self) -> list[float]:
        return [float(self.seen.get("fresh", 0))]


def plain(model: nn.Module, optimizer: Any) -> Callable[[Any], float]:
    def step(batch: Any) -> float:
        optimizer.zero_grad()
        total = 0.0
        for i in range(4):
            value = cross_entropy(model, {k: t[3 * i : 3 * i + 3] for k, t in batch.items()}) / 4
            value.backward()
            total += float(value.detach())
        optimizer.step()
        return total

    return step


def compiled(model: nn.Module, optimizer: Any) -> Callable[[Any], float]:
    step = detente.compile(
        model, cross_entropy, optimizer, example_batch=batches(1)[0], accumulate=4, cache=False, quiet=True
    )
    return lambda batch: float(step(batch))


def run(build: type[Counts], make: Any) -> list[float]:
    torch.manual_seed(0)
    model = build()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = make(model, sgd)
    found = []
    for batch in batches(4):
        found += [step(batch), *model.told]
        sgd.param_groups[0]["lr"] = 0.1 if model.calls % 8 else 0.2
    return found


@pytest.mark.parametrize("build", [Counts, Rows, Halves, Fresh])
def test_each_counts(build: type[Counts]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        assert run(build, compiled) == pytest.approx(run(build, plain), rel=1e-4)


class Warms(Counts):
    """The first call is another one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.body(x) * (2.0 if self.calls == 1 else 1.0)


def test_a_number_that_decides_is_refused() -> None:
    with pytest.raises(
        bridge.Refused, match=r"forward writes model.calls, and with it the next of 4 micro-batches"
    ):
        run(Warms, compiled)
