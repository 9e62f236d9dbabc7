"""What eager torch raises in a batch's forward pass comes out as it is, for who catches it by its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente import bridge
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal


def skipping(kinds: Any, change: Callable[[Any], Any]) -> Callable[[World], list[float]]:
    def loop(world: World) -> list[float]:
        found: list[float] = []
        for i, batch in enumerate(batches(5)):
            try:
                found.append(float(world.step(change(batch) if i == 2 else batch)))
            except kinds as error:
                found.append(float(len(str(error))))
        return found

    return loop


def test_one_row_for_a_batch_norm() -> None:
    """Eager counts the batch before it looks at it (``num_batches_tracked``), and a program that is refused does not:
    this one keeps no count."""

    def build() -> nn.Module:
        model = Net()
        model.norm = nn.BatchNorm1d(16, track_running_stats=False)
        return model

    equal(skipping(ValueError, lambda batch: {key: tensor[:1] for key, tensor in batch.items()}), build=build)


class TooShort(RuntimeError):
    """Of the user's own."""


def checks(model: Any, batch: Any) -> torch.Tensor:
    if len(batch["x"]) < 4:
        raise TooShort(f"{len(batch['x'])} rows")
    return cross_entropy(model, batch)


def asks(model: Any, batch: Any) -> torch.Tensor:
    names = {12: "whole", 8: "part"}
    assert names[len(batch["x"])]
    return cross_entropy(model, batch)


@pytest.mark.parametrize(("loss", "kind"), [(checks, TooShort), (asks, KeyError)], ids=["class", "KeyError"])
def test_of_the_losss_own(loss: Any, kind: type[Exception]) -> None:
    equal(
        skipping(kind, lambda batch: {key: tensor[:3] for key, tensor in batch.items()}),
        loss=lambda world: loss,
    )


def labels(model: Any, batch: Any) -> torch.Tensor:
    """Asks a question that is no guard, and raises behind it."""
    if (batch["y"] == 2).any():
        rows = int((batch["y"] == 2).sum())
        if rows > 11:
            raise LookupError(f"{rows} rows of one kind")
    return cross_entropy(model, batch)


def test_behind_a_question_about_values() -> None:
    equal(
        skipping(LookupError, lambda batch: {**batch, "y": torch.full_like(batch["y"], 2)}),
        loss=lambda world: labels,
    )


def test_of_the_example_batch() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    one = {key: tensor[:1] for key, tensor in batches(1)[0].items()}
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        detente.compile(model, cross_entropy, sgd, example_batch=one, cache=False)
    (reason,) = bridge.check(model, cross_entropy, one)
    assert reason.code == "export" and "more than 1 value per channel" in reason.what


def test_what_eager_does_not_raise_is_a_refusal() -> None:
    class Traced(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(x) is not torch.Tensor:
                raise KeyError("not this one")
            return super().forward(x)

    model = Traced(6, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(bridge.Refused, match="not this one"):
        detente.compile(model, cross_entropy, sgd, example_batch=batches(1)[0], cache=False)
