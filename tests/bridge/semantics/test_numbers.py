"""Python's numbers that are read of tensors (``.item()``): they carry no gradient, whatever is done with them."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente import bridge
from detente.bridge.lower.precision import x64
from detente.bridge.refusal import Refused
from detente.bridge.state.place import from_jax
from tests.quick_xla import OPTIONS
from tests.sampled import sampled

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def of(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m(x).square().mean()


def weighed(m: Any, x: torch.Tensor) -> torch.Tensor:
    losses = [of(m, x), m(x).abs().mean()]
    return (torch.softmax(torch.tensor([part.item() for part in losses]), 0) * torch.stack(losses)).sum()


CASES: dict[str, Any] = {
    "loss / loss.item()": lambda m, x: of(m, x) / of(m, x).item(),
    "loss.detach().item()": lambda m, x: of(m, x) * m(x).mean().detach().item(),
    "arithmetic of numbers": lambda m, x: (
        m(x).mean() * (1 - of(m, x).item()) ** 2 / (2 + abs(-of(m, x).item()))
    ),
    "a parameter's number": lambda m, x: m(x).mean() * m.weight[0, 0].item(),
    "tolist": lambda m, x: sum(m(x).mean(0).tolist()) * m(x).mean(),
    "torch.tensor of numbers": weighed,
    "torch.full": lambda m, x: (m(x) * torch.full((5, 6), of(m, x).item(), dtype=x.dtype)).mean(),
    "clamp": lambda m, x: m(x).clamp(max=of(m, x).item()).mean(),
    "masked_fill": lambda m, x: m(x).masked_fill(x > 0, of(m, x).item()).mean(),
    "leaky_relu": lambda m, x: F.leaky_relu(m(x), of(m, x).item()).mean(),
    "add_ in place": lambda m, x: m(x).mul(of(m, x).item()).add_(of(m, x).item()).mean(),
}


@pytest.mark.parametrize("name", sampled(CASES, 2))
def test_a_number_lets_no_gradient_through(name: str) -> None:
    torch.manual_seed(1)
    model, loss = nn.Linear(6, 6).double(), CASES[name]
    f = bridge.functional(model, loss, X)
    with x64():
        ours, grads = (
            jax.jit(jax.value_and_grad(f)).lower(f.params, X.numpy()).compile(OPTIONS)(f.params, X.numpy())
        )
    value = loss(model, X)
    value.backward()
    torch.testing.assert_close(from_jax(ours), value.detach(), rtol=1e-6, atol=1e-9)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(from_jax(grads[key]), parameter.grad, rtol=1e-6, atol=1e-9)


def test_a_number_where_python_must_know_it_is_refused_by_line() -> None:
    f = bridge.functional(nn.Linear(6, 6).double(), lambda m, x: m(x).abs().pow(of(m, x).item()).mean(), X)
    with (
        pytest.raises(Refused, match=r"aten.pow.* with a number that the program computes") as refused,
        x64(),
    ):
        jax.jit(f.apply)(f.params, X.numpy())
    where = refused.value.reasons[0].where
    assert where is not None and where.file == __file__
