"""An update that depends on where in its group a parameter stands is that of each parameter, as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import detente

X = torch.linspace(-1.0, 1.0, 20).reshape(5, 4)


class ByNumber(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.02})

    def scale(self, i: int, p: torch.Tensor, group: dict[str, Any]) -> float:
        return i + 1

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                p.sub_(p.grad, alpha=group["lr"] * self.scale(i, p, group))


class FirstIsSpecial(ByNumber):
    def scale(self, i: int, p: torch.Tensor, group: dict[str, Any]) -> float:
        return 2.0 if p is group["params"][0] else 1.0


class ByTheOneBefore(ByNumber):
    """Each is pulled towards the gradient of the one before it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            before: Any = None
            for p in group["params"]:
                p.sub_(p.grad if before is None else p.grad + before.mean(), alpha=group["lr"])
                before = p.grad


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize("make", [ByNumber, FirstIsSpecial, ByTheOneBefore])
def test_it_trains_as_eager_does(make: Any) -> None:
    found: list[list[float]] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        optimizer = make(model.parameters())
        options: dict[str, Any] = {"example_batch": X, "cache": False, "quiet": True}
        step = detente.compile(model, loss, optimizer, **options) if compiled else None
        losses = []
        for _ in range(4):
            if step is not None:
                losses.append(float(step(X)))
                continue
            optimizer.zero_grad()
            value = loss(model, X)
            value.backward()
            optimizer.step()
            losses.append(value.item())
        found.append(losses)
    assert found[1] == pytest.approx(found[0], rel=1e-5)
