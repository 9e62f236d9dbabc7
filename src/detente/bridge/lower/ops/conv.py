"""Convolutions and transposed convolutions of one to three dimensions, grouped and dilated.

Operands keep their dtype; XLA accumulates half precision in float32. The bias is added after the product. On a CPU the
result has its channels last (channels_last.py), and a kernel of one element, or one that strides over its own length,
is a matrix product: XLA takes 22 ms for the gradient of a kernel of one element as a convolution, and 3 as the same
product; of ConvNeXt's patches (2 x 2) half the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.backwards import only_backwards
from detente.bridge.lower.channels_last import Last, last, plainly, wanted
from detente.bridge.lower.contract import contracted
from detente.bridge.lower.dtypes import cast, is_float, out_dtype, wide
from detente.bridge.lower.ops import patches
from detente.bridge.lower.ops.depthwise import apart, depthwise
from detente.bridge.lower.ops.library_convolution import Ways, convolution, transposed, ways
from detente.bridge.lower.ops.matmul import by_rows
from detente.bridge.lower.table import lowers

_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


def _each(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * n if len(values) == 1 else values


def _numbers(n: int) -> tuple[str, str, str]:
    return f"NC{_LETTERS[n]}", f"OI{_LETTERS[n]}", f"NC{_LETTERS[n]}"


def _numbers_last(n: int) -> tuple[str, str, str]:
    return f"N{_LETTERS[n]}C", f"{_LETTERS[n]}IO", f"N{_LETTERS[n]}C"


def _with_bias(y: jax.Array, bias: jax.Array | None, behind: int) -> jax.Array:
    """``behind``: the axes that lie behind the channels."""
    if bias is None:
        return y
    # in float32: the bias' gradient is a sum over batch and space
    column = cast(bias, wide(y.dtype)).reshape(-1, *(1,) * behind)
    return cast(cast(y, wide(y.dtype)) + column, y.dtype)


def convolve(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> jax.Array:
    """Cross-correlation of (N, C, ...) with (O, C/groups, ...)."""
    n = weight.ndim - 2
    y = lax.conv_general_dilated(
        x,
        weight,
        tuple(stride),
        list(padding),
        rhs_dilation=tuple(dilation),
        dimension_numbers=_numbers(n),
        feature_group_count=groups,
    )
    return _with_bias(y, bias, behind=n)


def convolve_last(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> jax.Array:
    """``convolve`` of (N, ..., C) with the same (O, C/groups, ...), to (N, ..., O)."""
    plain = groups == 1 and all(p == (0, 0) for p in padding)
    if plain and set(weight.shape[2:]) == {1}:
        if set(stride) != {1}:
            x = x[(slice(None), *(slice(None, None, s) for s in stride))]
        y = _products(x, weight.reshape(weight.shape[:2]))
    elif plain and patches.apart(weight, stride, dilation):
        y = _products(patches.patches(x, weight.shape[2:]), weight.reshape(weight.shape[0], -1))
    elif apart(x.shape[-1], groups, weight.shape[2:]):
        y = depthwise(x, weight, stride, padding, dilation)
    else:
        y = convolution(
            x, weight, convolved_last(x.shape, weight, x.dtype, stride, padding, dilation, groups)
        )
    return _with_bias(y, bias, behind=0)


def _products(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """(..., C) with (O, C) to (..., O)."""
    kind = wide(rows.dtype) if is_float(rows.dtype) else None
    y = cast(contracted(by_rows, rows.reshape(-1, rows.shape[-1]), weight, kind), rows.dtype)
    return y.reshape(*rows.shape[:-1], weight.shape[0])


def convolved_last(
    shape: tuple[int, ...],
    weight: jax.Array,
    dtype: Any,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> Ways:
    """How (N, ..., C) of this shape and dtype is convolved with (O, C/groups, ...)."""
    n = weight.ndim - 2

    def plain(x: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            jnp.transpose(weight, (*range(2, 2 + n), 1, 0)),
            tuple(stride),
            list(padding),
            rhs_dilation=tuple(dilation),
            dimension_numbers=_numbers_last(n),
            feature_group_count=groups,
        )

    return ways(shape, weight, dtype, plain, stride, padding, dilation, groups)


def convolve_transposed(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> jax.Array:
    """The transpose of ``convolve``: ``weight`` is (C, O/groups, ...)."""
    n = weight.ndim - 2
    kernel = weight.shape[2:]
    # (C, O/g, k) -> (g, C/g, O/g, k) -> (O, C/g, k), turned over in space.
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    turned = jnp.swapaxes(grouped, 1, 2).reshape(-1, weight.shape[0] // groups, *kernel)
    turned = lax.rev(turned, tuple(range(2, 2 + n)))
    pads = []
    for k, p, extra, d in zip(kernel, padding, output_padding, dilation, strict=True):
        reach = d * (k - 1)
        pads.append((reach - p, reach - p + extra))
    y = lax.conv_general_dilated(
        x,
        turned,
        (1,) * n,
        pads,
        lhs_dilation=tuple(stride),
        rhs_dilation=tuple(dilation),
        dimension_numbers=_numbers(n),
        feature_group_count=groups,
    )
    return _with_bias(y, bias, behind=n)


def convolve_transposed_last(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> jax.Array:
    """``convolve_transposed`` of (N, ..., C) with the same (C, O/groups, ...), to (N, ..., O)."""
    if groups == 1 and not any((*padding, *output_padding)) and patches.apart(weight, stride, dilation):
        turned = weight.reshape(weight.shape[0], -1).T
        return _with_bias(patches.together(_products(x, turned), weight.shape[2:]), bias, behind=0)
    size = [
        (length - 1) * s - 2 * p + d * (k - 1) + extra + 1
        for length, s, p, d, k, extra in zip(
            x.shape[1:-1], stride, padding, dilation, weight.shape[2:], output_padding, strict=True
        )
    ]
    shape = (x.shape[0], *size, weight.shape[1] * groups)
    pads = [(p, p) for p in padding]
    by = convolved_last(shape, weight, x.dtype, stride, pads, dilation, groups)
    return _with_bias(transposed(x, weight, by), bias, behind=0)


def _batched(x: Any, n: int) -> tuple[Any, bool]:
    return (plainly(x)[None], True) if x.ndim == n + 1 else (x, False)


def _conv(n: int) -> Any:
    def lower(
        call: Any,
        x: jax.Array | Last,
        weight: jax.Array,
        bias: jax.Array | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> jax.Array | Last:
        weight, bias = plainly(weight), plainly(bias)
        x, single = _batched(x, n)
        dilation = _each(dilation, n)
        if padding == "same":
            reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
            pads = [(r // 2, r - r // 2) for r in reach]
        elif padding == "valid":
            pads = [(0, 0)] * n
        else:
            pads = [(p, p) for p in _each(padding, n)]
        if 0 in x.shape:
            return jnp.zeros(call.out.shape, out_dtype(call))
        if wanted() and not single:
            return Last(convolve_last(last(x).array, weight, bias, _each(stride, n), pads, dilation, groups))
        y = convolve(plainly(x), weight, bias, _each(stride, n), pads, dilation, groups)
        return y[0] if single else y

    return lower


for _n in (1, 2, 3):
    lowers(f"aten.conv{_n}d.default", f"aten.conv{_n}d.padding", aware=True)(_conv(_n))


def _conv_transpose(n: int) -> Any:
    def lower(
        call: Any,
        x: jax.Array | Last,
        weight: jax.Array,
        bias: jax.Array | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> jax.Array | Last:
        weight, bias = plainly(weight), plainly(bias)
        x, single = _batched(x, n)
        each = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
        sizes = {name: _each(v, n) for name, v in each.items()}
        # Only where what is added behind is less than a stride is it a convolution's input, whose result is as long.
        added = zip(sizes["output_padding"], sizes["stride"], strict=True)
        if wanted() and only_backwards() and not single and all(o < s for o, s in added) and 0 not in x.shape:
            return Last(convolve_transposed_last(last(x).array, weight, bias, groups=groups, **sizes))
        y = convolve_transposed(plainly(x), weight, bias, groups=groups, **sizes)
        return y[0] if single else y

    return lower


lowers("aten.conv_transpose1d.default", aware=True)(_conv_transpose(1))
lowers("aten.conv_transpose2d.input", aware=True)(_conv_transpose(2))
lowers("aten.conv_transpose3d.input", aware=True)(_conv_transpose(3))


@lowers(
    "aten.convolution.default",
    "aten._convolution.default",
    "aten.convolution_overrideable.default",
    aware=True,
)
def _convolution(
    call: Any,
    x: jax.Array | Last,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_: Any,
) -> jax.Array | Last:
    n = weight.ndim - 2
    if transposed:
        return _conv_transpose(n)(call, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv(n)(call, x, weight, bias, stride, padding, dilation, groups)
