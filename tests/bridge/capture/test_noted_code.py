"""Which code a capture is known to have run: all of a user's, wherever torch calls it from; and a profiler goes on."""

from __future__ import annotations

import cProfile
import pstats
import sys
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge.capture.capture import capture


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * helped(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * helped_back(grad)


def helped(x: torch.Tensor) -> torch.Tensor:
    return x + 0


def helped_back(x: torch.Tensor) -> torch.Tensor:
    return x * 1


def in_a_function(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return Doubled.apply(model(x)).mean()


def mapped(row: torch.Tensor) -> torch.Tensor:
    return row.square()


def in_a_map(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(mapped)(model(x)).mean()


def in_a_hook(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    y.register_hook(hook)
    return y.mean()


def hook(grad: torch.Tensor) -> torch.Tensor:
    return grad * 2


def in_a_checkpoint(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(again, model(x), use_reentrant=False).mean()


def again(x: torch.Tensor) -> torch.Tensor:
    return x.tanh()


def in_a_derivative(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    (found,) = torch.autograd.grad(Doubled.apply(y).sum(), y, create_graph=True)
    return (y * found).mean()


@pytest.mark.parametrize(
    ("loss", "run"),
    [
        (in_a_function, {"forward", "backward", "helped", "helped_back"}),
        (in_a_map, {"mapped"}),
        (in_a_hook, {"hook"}),
        (in_a_checkpoint, {"again"}),
        (in_a_derivative, {"helped", "helped_back"}),
    ],
)
def test_a_users_code_below_an_operator_is_noted(loss: Any, run: set[str]) -> None:
    found = capture(nn.Linear(3, 3), loss, torch.ones(2, 3))
    noted = {code.co_name for code in found.codes}
    assert {loss.__name__, *run} <= noted, noted


def test_torchs_own_code_is_not() -> None:
    """What runs below an operator of torch would be 60 % of a capture's time."""
    found = capture(nn.Linear(3, 3), lambda m, x: m(x).mean(), torch.ones(2, 3))
    assert "weight" in found.ran.names  # the layer's code asks for it
    assert "free_symbols" not in found.ran.names  # sympy's does, below torch


def made() -> Any:
    model = nn.Linear(3, 1)
    return detente.compile(
        model,
        lambda m, x: m(x).square().mean(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=torch.ones(2, 3),
        certificate="none",
    )


def afterwards() -> int:
    return 1


def test_a_step_is_compiled_under_cprofile_which_goes_on() -> None:
    with cProfile.Profile() as profiler:
        step = made()
        afterwards()
    float(step(torch.ones(2, 3)))
    names = {name for _, _, name in pstats.Stats(profiler).stats}  # type: ignore[attr-defined]
    assert {"afterwards", "capture"} <= names


def test_a_profiler_of_the_users_is_put_back() -> None:
    seen = []

    def mine(frame: Any, event: str, argument: Any) -> None:
        seen.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(mine)
    try:
        made()
        assert sys.getprofile() is mine
        afterwards()
    finally:
        sys.setprofile(before)
    assert "afterwards" in seen
