"""A tensor that the loss holds (no parameter, no buffer) and that somebody writes between two steps: where Python reads
its values while the program is captured, they are in the program, and another value is another program."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import detente
from tests.bridge.between.loops import eager
from tests.sampled import sampled

HELD = torch.zeros(())
SEVERAL = torch.zeros(3)

READS: dict[str, Any] = {
    "float": lambda y: y * (1 + math.cos(math.pi * float(HELD))),
    "a scalar argument": lambda y: torch.add(y, y, alpha=HELD),
    "a list": lambda y: y * sum(SEVERAL.tolist()),
    "item of what is computed": lambda y: y * (HELD * 2 + 1).item(),
    "full": lambda y: y * torch.full((2,), HELD),
    "a tensor of it": lambda y: y * torch.tensor([HELD, HELD]),
    "a branch": lambda y: y * 2 if HELD > 0.25 else y,
    "a branch on several": lambda y: y * 2 if SEVERAL.sum() > 0.75 else y,
    "int": lambda y: y * int(HELD * 10),
    "one of several": lambda y: y * SEVERAL[1],
    "item of the mean of several": lambda y: y * SEVERAL.mean().item(),
    "a scalar argument of several": lambda y: torch.add(y, y, alpha=SEVERAL[0]),
    "item of an exponential": lambda y: y * HELD.exp().item(),
    "a clamp by what is computed": lambda y: y.clamp(max=SEVERAL.min().item()),
    "an index": lambda y: y[:, (HELD * 10).long() % 2],
    "a product": lambda y: y * HELD,
    "a product without dimensions": lambda y: y.mean() * HELD,
}


def trained(use: Any, bridge: bool, path: Any = None) -> list[float]:
    HELD.fill_(0.1)
    SEVERAL.fill_(0.1)
    torch.manual_seed(0)
    model, x = nn.Linear(2, 2), torch.ones(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def loss(m: Any, x: Any) -> Any:
        return use(m(x)).pow(2).mean()

    step = eager(model, loss, optimizer)
    if bridge:
        step = detente.compile(model, loss, optimizer, example_batch=x, quiet=True)
    losses = []
    for number in range(5):
        losses.append(float(step(x)))
        if number % 2 == 1:  # every second step: not in the step that is certified alone
            HELD.fill_(0.1 + 0.1 * number)
            SEVERAL.data.add_(0.1)  # what torch counts no version of
    return losses


@pytest.mark.parametrize("name", sampled(READS, 2))
def test_what_python_reads_is_of_this_step(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert trained(READS[name], bridge=True) == pytest.approx(
            trained(READS[name], bridge=False), rel=1e-5
        )


def test_another_process_reads_its_own(tmp_path: Any, monkeypatch: Any) -> None:
    """A stored program would have the values of the process that stored it."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    model, x = nn.Linear(2, 2), torch.ones(3, 2)

    def loss(m: Any, x: Any) -> Any:
        return m(x).pow(2).mean() * float(HELD)

    found = []
    for value in (0.5, 2.0):
        HELD.fill_(value)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        step = detente.compile(model, loss, optimizer, example_batch=x, quiet=True)
        found.append(float(step(x)))
    assert found[1] == pytest.approx(4 * found[0], rel=1e-5)
