"""Tensors that an optimizer keeps in attributes of its own are what eager's are between two steps: for who reads them,
and where somebody writes them or puts others in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import detente
from tests.bridge.between.loops import eager

X = torch.ones(5, 2)
STEPS = 5


class Flat(torch.optim.Optimizer):
    """One buffer of all gradients, which the first step makes; ``calls`` counts."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.buffer: Any = None
        self.calls = 0

    def average(self, flat: torch.Tensor) -> None:
        self.buffer = flat.clone() if self.buffer is None else self.buffer * 0.9 + flat

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.calls += 1
        params = [p for group in self.param_groups for p in group["params"]]
        self.average(torch.cat([p.grad.flatten() for p in params]))
        begin = 0
        for p in params:
            p.add_(self.buffer[begin : begin + p.numel()].view_as(p), alpha=-0.1 / self.calls)
            begin += p.numel()


class InPlace(Flat):
    """A trace of one parameter has written to the buffer itself."""

    def average(self, flat: torch.Tensor) -> None:
        if self.buffer is None:
            self.buffer = torch.zeros_like(flat)
        self.buffer.mul_(0.9).add_(flat)


class Decays(torch.optim.Optimizer):
    """A number that is a tensor, which each step writes in place and nothing else of the step knows of."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.buffer = torch.ones(1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.buffer.mul_(0.7)
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * self.buffer, alpha=group["lr"])


def nothing(optimizer: Any) -> None:
    pass


def zeroes(optimizer: Any) -> None:
    optimizer.buffer.zero_()


def one_element(optimizer: Any) -> None:
    optimizer.buffer[0] = 2.0


def through_data(optimizer: Any) -> None:
    optimizer.buffer.data.mul_(0.5)


def binds_anew(optimizer: Any) -> None:
    optimizer.buffer = torch.full_like(optimizer.buffer, 0.25)


def binds_unread(optimizer: Any) -> None:
    optimizer.buffer = torch.full((3,), 0.25)


def forgets(optimizer: Any) -> None:
    optimizer.buffer = None


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def trained(make: Callable[[Any], Any], edit: Any, when: int, looks: bool, *, compiled: bool) -> list[float]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = make(model.parameters())
    options: dict[str, Any] = {"example_batch": X, "cache": False, "quiet": True}
    step = eager(model, loss, optimizer)
    if compiled:
        step = detente.compile(model, loss, optimizer, **options)
    found: list[float] = []
    for i in range(STEPS):
        found.append(float(step(X)))
        if looks:
            found += optimizer.buffer.tolist()
        if i == when:
            edit(optimizer)
    return found + optimizer.buffer.tolist()


CASES = [
    *(
        (Flat, edit, 2, False)
        for edit in (zeroes, one_element, through_data, binds_anew, binds_unread, forgets)
    ),
    *(
        (Flat, edit, 0, False) for edit in (nothing, zeroes, binds_unread, forgets)
    ),  # the first step has made it
    *((make, nothing, 0, True) for make in (Flat, InPlace, Decays)),
    *((InPlace, edit, 1, True) for edit in (zeroes, binds_unread)),
    *((Decays, edit, 1, False) for edit in (nothing, zeroes, binds_anew)),
]


@pytest.mark.parametrize(("make", "edit", "when", "looks"), CASES)
def test_it_is_eagers(make: Callable[[Any], Any], edit: Any, when: int, looks: bool) -> None:
    expected = trained(make, edit, when, looks, compiled=False)
    assert trained(make, edit, when, looks, compiled=True) == pytest.approx(expected, rel=1e-4, abs=1e-6)
