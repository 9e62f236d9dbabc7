"""Values where frameworks differ: NaN order, widths, division, empty tensors, masked rows, half precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from suite.case import Case, Judge, Observed
from suite.judge import same, within
from suite.nets import layer, normal, values

NAN = float("nan")
ROWS = torch.tensor([[1.0, NAN, 3.0, -2.0], [2.0, 2.0, -1.0, 0.0], [NAN, NAN, 1.0, 5.0]])
WIDE = torch.tensor([300, -129, 2**31 + 5, -(2**33) - 1, 0, 127])
SMALL = torch.tensor([300, -129, 70000, -1, 0, 127], dtype=torch.int32)
QKV = normal(3, 2, 2, 4, 8)
HALF = normal(64, 1024, seed=5).to(torch.bfloat16)


def as_exact_as_torch(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Judge:
    """Half precision: the mean error against float64 is at most 1.2 of torch's own (bridges that stay in bfloat16
    inside are at 1.6 and more)."""

    def judge(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
        exact = function(x.double())
        for i, true in enumerate(exact):
            right, mine = theirs[0].moments[0].aux[i], ours[0].moments[0].aux[i]
            if mine.dtype != right.dtype:
                return f"result {i}: {mine.dtype}, torch {right.dtype}".replace("torch.", "")
            own, error = (float((t.double() - true).abs().mean()) for t in (right, mine))
            if not error <= 1.2 * own:
                return f"mean error {error:.3g}, torch's {own:.3g}"
        return ""

    return judge


def _layer_norm(x):
    return (F.layer_norm(x, (1024,)),)


def _softmax(x):
    return (x.softmax(-1), (4 * x).log_softmax(-1))


def _reductions(x):
    return (x.sum(-1), x.mean(-1), x.logsumexp(-1))


def _allowed(kind: str) -> torch.Tensor:
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[1] = False
    return mask if kind == "bool" else torch.zeros(4, 4).masked_fill(~mask, -float("inf"))


def _attention(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _double(x):
    y = x.to(torch.float64) / 3
    return y, y.sum(), torch.linspace(0, 1, 5, dtype=torch.float64, device=x.device)


VALUES: tuple[tuple[str, str, str, Any, tuple[torch.Tensor, ...]], ...] = (
    ("max and argmax with NaN", "list", "NaN is the largest", lambda x: (*x.max(1), x.argmax(1)), (ROWS,)),
    ("min and argmin with NaN", "list", "NaN wins, too", lambda x: (*x.min(1), x.argmin(1)), (ROWS,)),
    (
        "amax, amin, maximum with NaN",
        "list",
        "NaN stays",
        lambda x: (x.amax(1), x.amin(1), torch.maximum(x, x.flip(1))),
        (ROWS,),
    ),
    ("sort with NaN", "list", "NaN last", lambda x: tuple(x.sort(dim=1, stable=True)), (ROWS,)),
    (
        "descending sort with NaN",
        "list",
        "NaN first",
        lambda x: tuple(x.sort(dim=1, descending=True, stable=True)),
        (ROWS,),
    ),
    ("topk with NaN", "list", "NaN is the largest", lambda x: x.topk(2, dim=1).values, (ROWS,)),
    ("smallest topk with NaN", "list", "", lambda x: x.topk(2, dim=1, largest=False).values, (ROWS,)),
    (
        "clamp, relu, comparisons of NaN",
        "list",
        "NaN stays; comparisons are false",
        lambda x: (x.clamp(0, 1), x.relu(), x > 0, x == x.flip(1)),
        (ROWS,),
    ),
    (
        "narrowing of integers",
        "list",
        "the low bits",
        lambda x: (x.to(torch.int8), x.to(torch.uint8), x.to(torch.int16)),
        (SMALL,),
    ),
    (
        "narrowing of int64",
        "list",
        "the low bits",
        lambda x: (x.to(torch.int32), x.to(torch.int8)),
        (WIDE,),
    ),
    (
        "narrowing of floats to int8",
        "list",
        "the low bits on the CPU (undefined in C++)",
        lambda x: (x.to(torch.int8), x.to(torch.uint8)),
        (torch.tensor([300.0, -129.5, 127.9, 0.5]),),
    ),
    (
        "float16 overflow",
        "list",
        "infinity",
        lambda x: x.to(torch.float16),
        (torch.tensor([7e4, -7e4, 1e-9, 1.0]),),
    ),
    (
        "int64 arithmetic beyond 32 bits",
        "4.2",
        "64 bits wide",
        lambda x: (x * x, x + 2**40, x << 3, x.sum()),
        (WIDE,),
    ),
    ("float64 that is asked for", "4.2", "stays float64", _double, (normal(4),)),
    (
        "floor, remainder and truncation of negative integers",
        "list",
        "",
        lambda x: (x // 7, x % 7, torch.div(x, -7, rounding_mode="trunc"), torch.fmod(x, -7)),
        (SMALL,),
    ),
    (
        "float division by zero",
        "list",
        "infinity and NaN, no error",
        lambda x: (x / 0.0, x % 0.0, x // 0.0),
        (torch.tensor([1.0, -1.0, 0.0]),),
    ),
    (
        "sum, product and mean of nothing",
        "list",
        "0, 1, NaN",
        lambda x: (x[:0].sum(0), x[:0].prod(), x[:, :0].mean(1)),
        (ROWS,),
    ),
    (
        "losses of an empty batch",
        "list",
        "NaN",
        lambda x, y: (F.mse_loss(x, x), F.cross_entropy(x, y)),
        (torch.ones(0, 3), torch.ones(0, dtype=torch.int64)),
    ),
    (
        "attention, softmax and sort of an empty batch",
        "list",
        "empty",
        lambda x: (F.scaled_dot_product_attention(x, x, x), x.softmax(-1), x.sort(0).values),
        (torch.ones(0, 2, 4, 8),),
    ),
    (
        "attention, a row that is all masked (bool)",
        "4.2",
        "zeros",
        _attention,
        (*QKV, _allowed("bool")),
    ),
    (
        "attention, a row that is all masked (float)",
        "4.2",
        "zeros",
        _attention,
        (*QKV, _allowed("float")),
    ),
)

HALVES = (
    ("layer_norm in bfloat16", _layer_norm),
    ("softmax in bfloat16", _softmax),
    ("sum, mean, logsumexp in bfloat16", _reductions),
)


CASES = (
    *(
        Case(name, "values", source, torchs, values(function, *tensors), same)
        for name, source, torchs, function, tensors in VALUES
    ),
    *(
        Case(
            name,
            "values",
            "4.2",
            "float32 inside, rounded once",
            values(function, HALF),
            as_exact_as_torch(function, HALF),
        )
        for name, function in HALVES
    ),
    Case(
        "a training step on an empty batch",
        "values",
        "list",
        "gradients of zeros",
        (
            # the sum of an empty result is 0, and so is every gradient
            layer(lambda: torch.nn.Linear(4, 3), torch.ones(0, 4), lambda m, x: m(x).sum(0))
        ),
        within(1e-6),
    ),
)
