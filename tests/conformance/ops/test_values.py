"""Values that ports get wrong: NaN order, kinks, narrowing, empty batches, masked rows, promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from opinfo.sides import gradient_in_table, in_eager, in_table, same

from tests.sampled import sampled

NAN = float("nan")
WITH_NAN = torch.tensor([[3.0, NAN, -1.0, NAN, 3.0], [0.0, -0.0, float("inf"), -float("inf"), NAN]])
TIES = torch.tensor([2.0, 5.0, 5.0, 1.0, 5.0])

NAN_CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda x: x.max(),
    "max dim": lambda x: tuple(x.max(1)),
    "min dim": lambda x: tuple(x.min(1)),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "amax": lambda x: x.amax(0),
    "maximum": lambda x: torch.maximum(x[0], x[1]),
    "fmax": lambda x: torch.fmax(x[0], x[1]),
    "fmin": lambda x: torch.fmin(x[0], x[1]),
    "sort": lambda x: tuple(torch.sort(x, stable=True, dim=1)),
    "sort down": lambda x: tuple(torch.sort(x, stable=True, dim=1, descending=True)),
    "topk": lambda x: torch.topk(x, 3, 1).values,
    "topk low": lambda x: torch.topk(x, 3, 1, largest=False).values,
    "median": lambda x: x.median(1).values,
    "nanmedian": lambda x: x.nanmedian(1).values,
    "kthvalue": lambda x: x.kthvalue(2, 1).values,
    "cummax": lambda x: x.cummax(1).values,
    "clamp": lambda x: x.clamp(-1, 1),
    "relu": F.relu,
    "sign": torch.sign,
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "nan_to_num": lambda x: torch.nan_to_num(x, 7.0),
    "max_pool1d": lambda x: F.max_pool1d(x[None], 2),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "softmax": lambda x: torch.softmax(x, 1),
}


@pytest.mark.parametrize("name", sampled(NAN_CASES, 3))
def test_nan(name: str) -> None:
    same(NAN_CASES[name], WITH_NAN)


GRADIENTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "relu at 0": (lambda x: F.relu(x).sum(), torch.tensor([-1.0, 0.0, 1.0])),
    "abs at 0": (lambda x: x.abs().sum(), torch.tensor([-1.0, 0.0, 1.0])),
    "clamp at its bounds": (lambda x: x.clamp(-1, 1).sum(), torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])),
    "hardtanh at its bounds": (lambda x: F.hardtanh(x).sum(), torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])),
    "amax among ties": (lambda x: x.amax(), TIES),
    "max dim among ties": (lambda x: x.max(0).values, TIES),
    "maximum of equals": (lambda x: torch.maximum(x, x.detach()).sum(), TIES),
    "norm at 0": (lambda x: x.norm(), torch.zeros(3)),
    "std of equals": (lambda x: x.std(), torch.ones(3)),
    "pow 0 at 0": (lambda x: (x**0.0).sum(), torch.tensor([0.0, 2.0])),
    "tensor power at 0": (lambda x: (x ** torch.tensor([0.0, 2.0])).sum(), torch.tensor([0.0, 0.0])),
    "prod with zeros": (lambda x: x.prod(), torch.tensor([0.0, 2.0, 3.0])),
    "prod with two zeros": (lambda x: x.prod(), torch.tensor([0.0, 2.0, 0.0])),
    "cumprod with zeros": (lambda x: x.cumprod(0).sum(), torch.tensor([2.0, 0.0, 3.0])),
    "atan2 at the origin": (lambda x: torch.atan2(x, x.detach()).sum(), torch.zeros(2)),
    "xlogy at 0": (lambda x: torch.xlogy(x, x.detach()).sum(), torch.tensor([0.0, 1.0])),
    "logsumexp of minus infinity": (lambda x: torch.logsumexp(x, 0), torch.tensor([1.0, -float("inf")])),
    "where hides a NaN branch": (
        lambda x: torch.where(x > 0, torch.log(x.clamp_min(1e-3)), 0 * x).sum(),
        torch.tensor([-1.0, 2.0]),
    ),
    "leaky_relu at 0": (lambda x: F.leaky_relu(x).sum(), torch.tensor([-1.0, 0.0, 1.0])),
    "softplus beyond its threshold": (
        lambda x: F.softplus(x).sum(),
        torch.tensor([-200.0, 0.0, 19.0, 21.0, 200.0]),
    ),
    "hardswish at its bounds": (lambda x: F.hardswish(x).sum(), torch.tensor([-3.0, 0.0, 3.0])),
    "l1_loss at 0": (lambda x: F.l1_loss(x, torch.zeros(3)), torch.tensor([-1.0, 0.0, 1.0])),
    "max_pool among ties": (lambda x: F.max_pool1d(x[None, None], 5).sum(), TIES),
    "embedding padding_idx": (
        lambda x: F.embedding(torch.tensor([0, 1, 1, 2]), x, padding_idx=1).sum(),
        torch.ones(3, 2),
    ),
    "sort": (
        lambda x: (torch.sort(x).values * torch.arange(5.0)).sum(),
        torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0]),
    ),
}


@pytest.mark.parametrize("name", sampled(GRADIENTS, 3))
def test_gradient(name: str) -> None:
    function, x = GRADIENTS[name]
    leaf = x.clone().requires_grad_()
    (theirs,) = torch.autograd.grad(function(leaf), leaf)
    (mine,) = gradient_in_table(function, x)
    np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-6, atol=1e-7)


def test_equal_bounds_of_clamp_take_no_gradient_from_below() -> None:
    x, lower, upper = torch.ones(4), torch.tensor([1.0, 2.0, 2.0, 0.0]), torch.tensor([1.0, 2.0, 1.0, 3.0])

    def loss(*given: torch.Tensor) -> torch.Tensor:
        return torch.clamp(*given).sum()

    leaves = [t.clone().requires_grad_() for t in (x, lower, upper)]
    wanted = torch.autograd.grad(loss(*leaves), leaves)
    for mine, theirs in zip(gradient_in_table(loss, x, lower, upper), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


LONG = 4096
SPREAD_CASES: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "expand": (lambda x, w: x.expand(LONG, 8) * w, (8,)),
    "expand_as": (lambda x, w: x.expand_as(w) * w, (1, 8)),
    "broadcast_to": (lambda x, w: torch.broadcast_to(x, (LONG, 8)) * w, (8,)),
    "broadcast_tensors": (lambda x, w: torch.broadcast_tensors(x, w)[0] * w, (8,)),
    "repeat": (lambda x, w: x.repeat(LONG, 2) * w, (4,)),
    "tile": (lambda x, w: torch.tile(x, (LONG, 1)) * w, (8,)),
    "repeat_interleave": (lambda x, w: x.repeat_interleave(LONG, 0) * w, (1, 8)),
    "where": (lambda x, w: torch.where(w > 0, x, w) * w, (8,)),
    "add": (lambda x, w: (w + x) * w, (8,)),
    "mul": (lambda x, w: (w * x) * w, (8,)),
    "kron": (lambda x, w: torch.kron(x, w[:, :1]).view(8, LONG).T * w, (8, 1)),
    "bias of a convolution": (
        lambda x, w: F.conv1d(w.T[None], torch.ones(8, 1, 1).to(w), x, groups=8)[0].T * w,
        (8,),
    ),
    "bias of a linear layer": (lambda x, w: F.linear(w, torch.eye(8).to(w), x) * w, (8,)),
}


@pytest.mark.parametrize("name", sampled(SPREAD_CASES, 3))
def test_the_gradient_of_what_is_broadcast_is_summed_in_float32(name: str) -> None:
    """Four thousand terms in bfloat16: rounded after each, the sum would be off by whole units."""
    function, shape = SPREAD_CASES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).bfloat16()
    w = torch.randn(LONG, 8, generator=generator).bfloat16()

    def gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(function(x, w).to(torch.float64).sum(), x)[0].double()

    exact, theirs = gradient(x.double(), w.double()), gradient(x, w)
    mine = gradient_in_table(lambda x, w: function(x, w).float().sum(), x, w)[0].astype(np.float64)
    allowed = 2 * (theirs - exact).abs().max() + 2**-8 * exact.abs().max()
    assert np.abs(mine - exact.numpy()).max() <= allowed


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (torch.int8, [300.0, -300.0, 127.9, -128.9, 0.5]),
        (torch.uint8, [300.0, -1.0, 255.9, 0.9]),
        (torch.int16, [70000.0, -70000.0]),
        (torch.bool, [0.0, 0.1, NAN, -2.0]),
        (torch.float16, [70000.0, 1e-9, -70000.0]),
        (torch.bfloat16, [1.00390625, 3.4e38, 1e-40]),
    ],
)
def test_narrowing_from_float(dtype: torch.dtype, values: list[float]) -> None:
    same(lambda x: x.to(dtype), torch.tensor(values))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_narrowing_of_integers_wraps(dtype: torch.dtype) -> None:
    same(lambda x: x.to(dtype), torch.tensor([300, -300, 2**31 + 5, -(2**40) + 3, 2**63 - 1]))


def test_int64_keeps_its_range() -> None:
    same(lambda x: x * 3 + 2**40, torch.tensor([2**33, -(2**50)]))


EMPTY = torch.zeros(0, 4)
EMPTY_CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear": lambda x: F.linear(x, torch.ones(3, 4)),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "prod": lambda x: x.prod(),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(0, dtype=torch.long)),
    "mse": lambda x: F.mse_loss(x, x),
    "embedding": lambda x: F.embedding(x[:, 0].long(), torch.ones(3, 2)),
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: tuple(x.sort(0)),
    "cat": lambda x: torch.cat([x, torch.ones(2, 4)]),
    "view": lambda x: x.reshape(0, 2, 2),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "any": lambda x: (x > 0).any(),
    "std": lambda x: x.std(0),
    "nonzero_static": lambda x: torch.nonzero_static(x, size=3),
    "searchsorted": lambda x: torch.searchsorted(x, x),
    "searchsorted in nothing": lambda x: torch.searchsorted(torch.zeros(2, 0), torch.ones(2, 3)) + x.sum(),
}


@pytest.mark.parametrize("name", EMPTY_CASES)
def test_empty_batch(name: str) -> None:
    same(EMPTY_CASES[name], EMPTY)


def test_a_circular_pad_goes_round_what_a_negative_pad_left() -> None:
    x = torch.arange(48.0).reshape(1, 3, 4, 4)
    for pad in ((-1, 1, -2, 1), (1, -1, 0, 0), (2, 2, 1, 1)):
        same(lambda y, pad=pad: F.pad(y, pad, "circular"), x)


def _attention(mask: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masked_rows_are_zero_and_so_are_their_gradients(kind: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 4, 8, dtype=torch.float64) for _ in range(3))
    allowed = torch.tril(torch.ones(4, 4, dtype=torch.bool))
    allowed[2] = False
    mask = (
        allowed
        if kind == "bool"
        else torch.zeros(4, 4, dtype=torch.float64).masked_fill(~allowed, -float("inf"))
    )
    (mine,) = in_table(_attention(mask), q, k, v).outputs
    (theirs,) = in_eager(_attention(mask), q, k, v)
    assert np.all(mine[:, :, 2] == 0)
    np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-14)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    theirs_grads = torch.autograd.grad(_attention(mask)(*leaves).square().sum(), leaves)
    for a, b in zip(
        gradient_in_table(lambda *t: _attention(mask)(*t).square().sum(), q, k, v), theirs_grads, strict=True
    ):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-10, atol=1e-13)


PAIRS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


@pytest.mark.parametrize("left", sampled(PAIRS, 3))
def test_promotion_of_tensors_scalars_and_numbers(left: torch.dtype) -> None:
    x = torch.tensor([1, 2, 0]).to(left)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        results = [x + 1, x * 2.5, x == 1, x > 0.5, x / 2, torch.where(x > 0, x, 1.5), x + True]
        for right in PAIRS:
            y = torch.tensor([3, 1, 1]).to(right)
            results += [x + y, x < y, torch.true_divide(x, y), x * y[0], x.ge(y[0]), torch.where(y > 1, x, y)]
        return tuple(results)  # type: ignore[return-value]

    same(function, x)


def test_bfloat16_sums_in_float32() -> None:
    x = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    (mine,) = in_table(lambda x: x.sum(), x).outputs
    # Added up in bfloat16 this stops at 256.
    assert float(mine) == 4096.0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (64,)),
        lambda x: torch.softmax(x, -1),
        lambda x: F.log_softmax(x, -1),
        F.gelu,
        lambda x: x.mean(-1),
        lambda x: F.cross_entropy(x, torch.arange(32) % 64),
        lambda x: F.rms_norm(x, (64,)),
    ],
    ids=["layer_norm", "softmax", "log_softmax", "gelu", "mean", "cross_entropy", "rms_norm"],
)
def test_bfloat16_is_rounded_once(function: Callable[..., torch.Tensor]) -> None:
    """Within one rounding of the exact result: what computing in float32 and rounding at the end gives."""
    torch.manual_seed(0)
    x = (torch.randn(32, 64) * 3).to(torch.bfloat16)
    (mine,) = in_table(function, x).outputs
    exact = function(x.double()).numpy()
    assert np.all(np.abs(mine.astype(np.float64) - exact) <= 2.0**-8 * np.abs(exact) + 1e-6)
