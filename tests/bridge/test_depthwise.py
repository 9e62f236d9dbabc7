"""Convolutions of every channel by itself: the same numbers as torch's, in all shapes and by every derivative."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import detente
from detente import bridge
from tests.bridge.test_channels_last import agrees, near
from tests.sampled import sampled

CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "as ConvNeXt's": (nn.Conv2d(6, 6, 7, padding=3, groups=6), (2, 6, 9, 11)),
    "no padding": (nn.Conv2d(6, 6, 3, groups=6), (2, 6, 8, 7)),
    "more padding than kernel": (nn.Conv2d(4, 4, 3, padding=5, groups=4), (2, 4, 4, 4)),
    "dilated": (nn.Conv2d(4, 4, (3, 2), padding=(2, 0), dilation=(2, 3), groups=4), (2, 4, 9, 8)),
    "a stride": (nn.Conv2d(4, 4, 3, stride=(2, 3), padding=1, groups=4), (2, 4, 9, 10)),
    "several from each": (nn.Conv2d(3, 12, 3, padding=1, groups=3, bias=False), (2, 3, 6, 6)),
    "several from each, a stride": (nn.Conv2d(3, 6, 4, stride=2, padding=1, groups=3), (2, 3, 7, 7)),
    "causal, one dimension": (nn.Conv1d(8, 8, 4, padding=3, groups=8), (2, 8, 10)),
    "three dimensions": (nn.Conv3d(4, 4, (3, 2, 3), padding=1, groups=4), (1, 4, 5, 5, 4)),
    "one element": (nn.Conv2d(5, 5, 1, groups=5), (2, 5, 4, 4)),
    "same": (nn.Conv2d(4, 4, 4, padding="same", groups=4), (2, 4, 6, 6)),
    "a large kernel, which is left alone": (nn.Conv2d(2, 2, 13, padding=6, groups=2), (1, 2, 15, 15)),
}


@pytest.mark.parametrize("name", sampled(CASES, 2))
def test_it_trains_as_eager(name: str) -> None:
    layer, shape = CASES[name]
    torch.manual_seed(0)
    dim = len(shape) - 2
    model = nn.Sequential(getattr(nn, f"Conv{dim}d")(shape[1], shape[1], 1), nn.Tanh(), copy.deepcopy(layer))
    agrees(model, torch.randn(shape))


def test_in_a_loop_that_computes_again() -> None:
    torch.manual_seed(0)
    block = [
        nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.GELU()
        )
        for _ in range(6)
    ]
    step = agrees(nn.Sequential(*block), torch.randn(2, 4, 6, 6), form="rolled+full")
    assert step.choice.form == "rolled+full"


def test_half_precision_sums_in_float32() -> None:
    """The certificate's own bound for bfloat16 holds, at a kernel of 49 terms."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 7, padding=3, groups=8)).to(torch.bfloat16)
    x = torch.randn(2, 3, 12, 12, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = bridge.compile(
        model, lambda m, b: m(b).float().square().mean(), optimizer, example_batch=x, cache=False, quiet=True
    )
    step(x).item()
    assert step.settled().ok, step.settled()


def test_a_gradient_of_a_gradient() -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1, groups=3)

        def forward(self, x: Any) -> Any:
            x = x.clone().requires_grad_(True)
            y = self.conv(x).tanh().square().sum()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            return y + g.square().sum()

    torch.manual_seed(0)
    model = Penalty().double()
    eager, x = copy.deepcopy(model), torch.randn(2, 3, 5, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = bridge.compile(
        model, lambda m, b: m(b), optimizer, example_batch=x, certificate="none", cache=False, quiet=True
    )
    found = step.gradients(x)
    eager(x).backward()
    for name, parameter in eager.named_parameters():
        near(found[name], parameter.grad, name)


def test_forward_derivatives_stay_where_a_user_may_take_them() -> None:
    """``detente.functional`` is a function of JAX's like any other: ``jvp`` and ``hessian`` too."""
    torch.manual_seed(0)
    model = nn.Conv2d(2, 2, 3, padding=1, groups=2, bias=False).double()
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    with jax.enable_x64(True):
        function = detente.functional(model, lambda m, b: m(b).pow(3).sum(), x)
        batch = jnp.asarray(x.numpy())

        def value(params: Any) -> Any:
            found = function(params, batch)
            return found[0] if isinstance(found, tuple) else found

        hessian = jax.hessian(value)(function.params)["weight"]["weight"]

    def eager(weight: Any) -> Any:
        return torch.nn.functional.conv2d(x, weight, padding=1, groups=2).pow(3).sum()

    theirs = torch.autograd.functional.hessian(eager, model.weight.detach())
    assert np.allclose(hessian, theirs.numpy(), rtol=1e-9, atol=1e-9)
