"""Losses that hold a gradient themselves, in float32 and with every kernel called that can be: a kernel's own
derivative is differentiated again, or the plain form is there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detente
from detente.bridge.kernels import build
from detente.bridge.lower.ops import fused_attention, library_convolution
from tests.sampled import sampled


class Mixed(nn.Module):
    """Attention over places, as large as its kernel asks for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(2).transpose(1, 2)[:, None]
        return F.scaled_dot_product_attention(rows, rows, rows)[:, 0].transpose(1, 2).reshape(x.shape)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "a convolution": lambda: nn.Conv2d(16, 16, 3, padding=1),
    "one of a few channels": lambda: nn.Sequential(
        nn.Conv2d(16, 2, 3, padding=1), nn.Conv2d(2, 16, 3, padding=1)
    ),
    "every channel by itself": lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16),
    "a transposed one": lambda: nn.ConvTranspose2d(16, 16, 4, 2, 1),
    "patches": lambda: nn.Sequential(nn.Conv2d(16, 16, 2, 2), nn.ConvTranspose2d(16, 16, 2, 2)),
    "attention": Mixed,
}


def penalty(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(torch.tanh(m[1](F.softplus(m[0](x)))).sum(), x, create_graph=True)
    return slope.pow(2).mean()


def each(m: Any, x: torch.Tensor) -> torch.Tensor:
    def one(row: torch.Tensor) -> torch.Tensor:
        return m[1](torch.tanh(m[0](row[None]))).pow(2).sum()

    return torch.func.vmap(torch.func.grad(one))(x).pow(2).mean()


def forwards(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jvp(lambda x: m[1](F.silu(m[0](x))).sum(), (x,), (x,))[1]


def forwards_of_backwards(m: Any, x: torch.Tensor) -> torch.Tensor:
    slope = torch.func.grad(lambda x: m[1](F.silu(m[0](x))).pow(2).sum())
    return torch.func.jvp(slope, (x,), (x,))[1].pow(2).mean()


@pytest.mark.parametrize("loss", sampled([penalty, each, forwards, forwards_of_backwards], 2))
@pytest.mark.parametrize("name", LAYERS)
def test_it_trains_as_eager(
    name: str, loss: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_convolution, "LEAST", 0)
    monkeypatch.setattr(library_convolution, "CHANNELS", 3)
    monkeypatch.setattr(fused_attention, "LEAST", 0)
    torch.manual_seed(0)
    model, x = nn.Sequential(LAYERS[name](), nn.Conv2d(16, 4, 3)), torch.randn(2, 16, 8, 8)
    eager = copy.deepcopy(model)
    wanted = loss(eager, x)
    wanted.backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(
        model, loss, optimizer, example_batch=x, cache=False, certificate="none", quiet=True
    )
    before = build.kernels().calls()
    found = step.gradients(x)
    assert build.kernels().calls() > before
    for key, parameter in eager.named_parameters():
        if parameter.grad is not None:
            error = (found[key] - parameter.grad).norm() / parameter.grad.norm().clamp(min=1e-6)
            assert error < 1e-5, f"{key}: {float(error):.2g}"
    assert step(x).item() == pytest.approx(wanted.item(), rel=1e-5)
