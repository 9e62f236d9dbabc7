"""A loss is often a method of what trains: an object that counts its steps, keeps a history and holds the model."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BatchEncoding

import detente

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@dataclass
class Batch:
    x: torch.Tensor


BATCHES: dict[str, Any] = {
    "tensor": X,
    "dictionary": {"x": X},
    "dataclass": Batch(X),
    "BatchEncoding": BatchEncoding({"x": X}),
}


def read(batch: Any) -> torch.Tensor:
    if isinstance(batch, torch.Tensor):
        return batch
    return batch.x if isinstance(batch, Batch) else batch["x"]


class Trainer:
    def __init__(self, model: nn.Module, scale: float = 0.5) -> None:
        self.wrapped, self.model = nn.Sequential(model, nn.Identity()), weakref.proxy(model)
        self.scale, self.seen, self.history = scale, 0, []
        self.totals = {"loss": 0.0}

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(read(batch)) * self.scale).square().mean()

    def note(self, value: float) -> None:
        self.seen += 1
        self.history.append(value)
        self.totals["loss"] += value


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 3), nn.Tanh())


@pytest.mark.parametrize("kind", BATCHES)
def test_what_it_counts_compiles_nothing_and_what_it_reads_is_followed(kind: str) -> None:
    batch, model = BATCHES[kind], net()
    beside = copy.deepcopy(model)
    trainer, eager = Trainer(model), Trainer(beside)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(model, trainer.loss, optimizer, example_batch=batch, cache=False)
    plain = torch.optim.SGD(beside.parameters(), lr=0.1)
    for number in range(6):
        if number == 4:
            trainer.scale = eager.scale = 0.25
        trainer.note(float(step(batch)))
        plain.zero_grad()
        value = eager.loss(beside, batch)
        value.backward()
        plain.step()
        eager.note(value.item())
        assert len(step.programs) == (1 if number < 4 else 2), number
    assert trainer.history == pytest.approx(eager.history, rel=1e-6)
    torch.testing.assert_close(model.state_dict(), beside.state_dict())


@pytest.mark.parametrize("how", ["wrapped", "by a weak reference", "its part"])
def test_a_loss_that_holds_the_model_again(how: str) -> None:
    model = net()
    holds = {
        "wrapped": nn.ModuleDict({"whole": model, "other": nn.Linear(3, 3)}),
        "by a weak reference": weakref.proxy(model),
        "its part": nn.ModuleList([model[0]]),
    }[how]
    kept: list[Any] = [holds]

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean() if kept else model(x).mean()

    beside = copy.deepcopy(model)
    step = detente.compile(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=X, cache=False
    )
    plain = torch.optim.SGD(beside.parameters(), lr=0.1)
    for _ in range(3):
        step(X)
        plain.zero_grad()
        beside(X).square().mean().backward()
        plain.step()
    torch.testing.assert_close(model.state_dict(), beside.state_dict())
