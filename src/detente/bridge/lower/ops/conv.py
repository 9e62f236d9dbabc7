"""Convolutions and transposed convolutions of one to three dimensions, grouped and dilated.

Operands keep their dtype; XLA accumulates half precision in float32. The bias is added after the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.dtypes import cast, out_dtype, wide
from detente.bridge.lower.table import lowers

_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


def _each(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * n if len(values) == 1 else values


def _numbers(n: int) -> tuple[str, str, str]:
    return f"NC{_LETTERS[n]}", f"OI{_LETTERS[n]}", f"NC{_LETTERS[n]}"


def _with_bias(y: jax.Array, bias: jax.Array | None) -> jax.Array:
    if bias is None:
        return y
    # in float32: the bias' gradient is a sum over batch and space
    column = cast(bias, wide(y.dtype)).reshape(-1, *(1,) * (y.ndim - 2))
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
    return _with_bias(y, bias)


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
    return _with_bias(y, bias)


def _batched(x: jax.Array, n: int) -> tuple[jax.Array, bool]:
    return (x[None], True) if x.ndim == n + 1 else (x, False)


def _conv(n: int) -> Any:
    def lower(
        call: Any,
        x: jax.Array,
        weight: jax.Array,
        bias: jax.Array | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> jax.Array:
        x, single = _batched(x, n)
        dilation = _each(dilation, n)
        if padding == "same":
            reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
            pads = [(r // 2, r - r // 2) for r in reach]
        elif padding == "valid":
            pads = [(0, 0)] * n
        else:
            pads = [(p, p) for p in _each(padding, n)]
        if x.size == 0:
            return jnp.zeros(call.out.shape, out_dtype(call))
        y = convolve(x, weight, bias, _each(stride, n), pads, dilation, groups)
        return y[0] if single else y

    return lower


for _n in (1, 2, 3):
    lowers(f"aten.conv{_n}d.default", f"aten.conv{_n}d.padding")(_conv(_n))


def _conv_transpose(n: int) -> Any:
    def lower(
        call: Any,
        x: jax.Array,
        weight: jax.Array,
        bias: jax.Array | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> jax.Array:
        x, single = _batched(x, n)
        each = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
        y = convolve_transposed(
            x, weight, bias, groups=groups, **{name: _each(v, n) for name, v in each.items()}
        )
        return y[0] if single else y

    return lower


lowers("aten.conv_transpose1d.default")(_conv_transpose(1))
lowers("aten.conv_transpose2d.input")(_conv_transpose(2))
lowers("aten.conv_transpose3d.input")(_conv_transpose(3))


@lowers("aten.convolution.default", "aten._convolution.default", "aten.convolution_overrideable.default")
def _convolution(
    call: Any,
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_: Any,
) -> jax.Array:
    n = weight.ndim - 2
    if transposed:
        return _conv_transpose(n)(call, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv(n)(call, x, weight, bias, stride, padding, dilation, groups)
