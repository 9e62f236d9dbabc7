"""Values where frameworks differ: NaN order, narrowing, division, empty tensors, masked rows, half precision."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente import bridge
from detente.bridge.lower.precision import x64
from detente.bridge.state.place import from_jax
from tests.sampled import sampled

NAN = float("nan")
G = torch.Generator().manual_seed(0)
ROWS = torch.tensor([[1.0, NAN, 3.0, -2.0], [2.0, 2.0, -1.0, 0.0], [NAN, NAN, 1.0, 5.0]])
WIDE = torch.tensor([300, -129, 2**31 + 5, -(2**33) - 1, 0, 127])
QKV = torch.randn(3, 2, 2, 4, 8, generator=G)


class One(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


def compare(function, *tensors, exact=True):
    """``function(*tensors)`` gives tensors; the program's are torch's, NaN for NaN, dtype for dtype."""

    def loss(model, batch):
        results = function(*batch)
        return model.weight * 1.0, list(results) if isinstance(results, tuple | list) else [results]

    f = bridge.functional(One(), loss, tensors)
    with x64():
        _, (ours, _) = jax.jit(f.apply)(f.params, tuple(t.numpy() for t in tensors))
    _, theirs = loss(One(), tensors)
    for array, torchs in zip(ours, theirs, strict=True):
        mine = from_jax(array)
        assert mine.dtype == torchs.dtype and mine.shape == torchs.shape
        tolerance = 0.0 if exact else 2e-6
        torch.testing.assert_close(mine, torchs, rtol=tolerance, atol=tolerance, equal_nan=True)


CASES = {
    "max and argmax put NaN first": (lambda x: (*x.max(dim=1), x.argmax(1), x.max()), ROWS),
    "min and argmin put NaN first": (lambda x: (*x.min(dim=1), x.argmin(1), x.min()), ROWS),
    "amax, amin, maximum": (lambda x: (x.amax(1), x.amin(1), torch.maximum(x, x.flip(1))), ROWS),
    "sort puts NaN last": (lambda x: tuple(x.sort(dim=1, stable=True)), ROWS),
    "descending sort puts NaN first": (lambda x: tuple(x.sort(dim=1, descending=True, stable=True)), ROWS),
    "topk takes NaN as largest": (lambda x: x.topk(2, dim=1).values, ROWS),
    "clamp and relu keep NaN": (lambda x: (x.clamp(0, 1), x.relu(), x.nan_to_num(7.0)), ROWS),
    "sign and comparison of NaN": (lambda x: (x > 0, x == x.flip(1), x.sign(), x.isnan()), ROWS),
    "narrowing wraps": (
        lambda x: (x.to(torch.int32), x.to(torch.int8), x.to(torch.uint8), x.to(torch.int16)),
        WIDE,
    ),
    "integer arithmetic stays 64 bits wide": (
        lambda x: (x * x, x + 2**40, x << 3, x.sum(), x.cumsum(0)),
        WIDE,
    ),
    "floor and remainder of negative integers": (
        lambda x: (x // 7, x % 7, torch.div(x, -7, rounding_mode="trunc"), torch.fmod(x, -7)),
        WIDE,
    ),
    "true division of integers": (lambda x: (x / 4, x / 2.0), WIDE),
    "sum of an empty tensor": (lambda x: (x[:0].sum(0), x[:0].prod(), x[:, :0].mean(1)), ROWS),
    "float arithmetic by zero": (lambda x: (x / 0.0, x % 0.0, x // 0.0), torch.tensor([1.0, -1.0, 0.0])),
    "round half to even": (lambda x: (x.round(), x.floor(), x.trunc()), torch.tensor([0.5, 1.5, -2.5, 2.4])),
    "bool arithmetic": (
        lambda x: ((x > 0).sum(), (x > 0) + 1, (x > 0).float().mean()),
        torch.tensor([1.0, -1.0, 2.0]),
    ),
}


@pytest.mark.parametrize("name", sampled(CASES, 2))
def test_value_is_torchs(name):
    function, *tensors = CASES[name]
    compare(function, *tensors)


def test_division_by_a_constant_may_differ_in_the_last_bit():
    """XLA multiplies by the rounded reciprocal, in JAX's own programs too."""
    compare(lambda x: x / 3, WIDE, exact=False)


def test_a_fully_masked_row_of_attention_is_zero():
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[1] = False
    compare(
        lambda qkv, m: F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=m),
        QKV,
        mask,
        exact=False,
    )


def test_half_precision_accumulates_as_torch_does():
    x = torch.randn(4, 1024, generator=G).to(torch.bfloat16)

    def function(x):
        return F.layer_norm(x, (1024,)), x.softmax(-1), x.sum(-1), x.logsumexp(-1), F.gelu(x)

    def loss(model, batch):
        return model.weight * 1.0, list(function(batch))

    f = bridge.functional(One(), loss, x)
    _, (ours, _) = jax.jit(f.apply)(f.params, jax.numpy.asarray(x.float().numpy(), jax.numpy.bfloat16))
    exact = function(x.double())
    for mine, torchs, true in zip(ours, function(x), exact, strict=True):
        assert from_jax(mine).dtype == torchs.dtype
        own, theirs = (float((t.double() - true).abs().mean()) for t in (from_jax(mine), torchs))
        assert own <= 1.05 * theirs + 1e-9, f"{own:.3g} against torch's {theirs:.3g}"


def test_integer_division_by_zero_raises_as_in_torch():
    model = One()

    def loss(model, batch):
        return model.weight * (batch[0] // batch[1]).sum()

    step = bridge.compile(
        model,
        loss,
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=(torch.tensor([6, 7]), torch.tensor([2, 3])),
        certificate="none",
    )
    assert float(step((torch.tensor([6, 7]), torch.tensor([2, 3])))) == 5.0
    value = step((torch.tensor([6, 7]), torch.tensor([2, 0])))
    with pytest.raises((ZeroDivisionError, RuntimeError), match=r"(?i)zero"):
        float(value)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a * 3, (y,))


def test_cond_runs_the_branch_that_the_values_choose():
    model, loss = Branches(), lambda m, b: m(b).sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = bridge.compile(model, loss, optimizer, example_batch=torch.ones(2, 4), certificate="none")
    for sign in (1.0, -1.0):
        x = sign * torch.ones(2, 4)
        y = model.linear(x)
        expected = (y.sin() if sign > 0 else y * 3).sum()
        (gradient,) = torch.autograd.grad(expected, [model.linear.weight])
        torch.testing.assert_close(step.gradients(x)["linear.weight"], gradient)
    expected = float(model.linear(torch.ones(2, 4)).sin().sum())
    assert float(step(torch.ones(2, 4))) == pytest.approx(expected, rel=1e-6)
    assert len(step.programs) == 1


def test_an_empty_batch_gives_nan_as_in_torch():
    compare(lambda x: F.mse_loss(x, x), torch.ones(0, 3))
    assert np.isnan(float(F.mse_loss(torch.ones(0), torch.ones(0))))
