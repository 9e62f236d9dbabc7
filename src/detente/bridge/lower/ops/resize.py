"""interpolate: nearest, linear, cubic, area with antialias; one small static matrix per resized dimension.

Source coordinates are static, so they are computed while lowering, in the dtype that ATen computes them in (float32,
or float64 for float64 inputs), and the same pixels are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.dtypes import cast, out_dtype, wide
from detente.bridge.lower.table import lowers


def _kind(dtype: Any) -> type:
    return np.float64 if jnp.dtype(dtype).name == "float64" else np.float32


def _step(size: int, out: int, align_corners: bool, scale: float | None, kind: type) -> Any:
    """Source pixels per output pixel, as ATen's ``area_pixel_compute_scale``."""
    if align_corners:
        return kind(size - 1) / kind(out - 1) if out > 1 else kind(0)
    return kind(1.0 / scale) if scale is not None and scale > 0 else kind(size) / kind(out)


def _nearest(size: int, out: int, scale: float | None, exact: bool) -> np.ndarray:
    """The source pixel of every output pixel; ATen computes it in float32 for every dtype."""
    step = np.float32(1.0 / scale) if scale is not None and scale > 0 else np.float32(size) / np.float32(out)
    places = np.arange(out, dtype=np.float32)
    source = np.floor((places + np.float32(0.5)) * step if exact else places * step)
    return np.minimum(source.astype(np.int64), size - 1)


def _sources(size: int, out: int, align: bool, scale: float | None, kind: type, cubic: bool) -> np.ndarray:
    step, places = _step(size, out, align, scale, kind), np.arange(out, dtype=kind)
    if align:
        return step * places
    source = step * (places + kind(0.5)) - kind(0.5)
    return source if cubic else np.maximum(source, kind(0))


# (out, size) weights, and which pixels each result is made of: also those whose weight is 0, since 0 times NaN is NaN.
Mixture = tuple[np.ndarray, np.ndarray]


def _linear(size: int, out: int, align: bool, scale: float | None, kind: type) -> Mixture:
    """Of linear interpolation."""
    source = _sources(size, out, align, scale, kind, False)
    low = np.minimum(source.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    share = np.clip(source - low, 0, 1).astype(kind)
    matrix, seen = np.zeros((out, size), kind), np.zeros((out, size), bool)
    rows = np.arange(out)
    for column, weight in ((low, 1 - share), (high, share)):
        np.add.at(matrix, (rows, column), weight)
        seen[rows, column] = True
    return matrix, seen


def _cubic_weight(x: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _cubic(size: int, out: int, align: bool, scale: float | None, kind: type) -> Mixture:
    """Of cubic convolution with a = -0.75, borders repeated."""
    source = _sources(size, out, align, scale, kind, True)
    base = np.floor(source)
    share = (source - base).astype(kind)
    matrix, seen = np.zeros((out, size), kind), np.zeros((out, size), bool)
    rows = np.arange(out)
    for k in range(-1, 3):
        column = np.clip(base.astype(np.int64) + k, 0, size - 1)
        np.add.at(matrix, (rows, column), _cubic_weight(share - k, -0.75).astype(kind))
        seen[rows, column] = True
    return matrix, seen


def _antialiased(weigh: Callable[[np.ndarray], np.ndarray], support: float) -> Callable[..., Mixture]:
    def matrix(size: int, out: int, align: bool, scale: float | None, kind: type) -> Mixture:
        step = _step(size, out, align, scale, kind)
        widen = max(float(step), 1.0)
        reach = support * widen
        result, seen = np.zeros((out, size), kind), np.zeros((out, size), bool)
        for i in range(out):
            centre = float(step) * (i + 0.5)
            first = max(int(centre - reach + 0.5), 0)
            last = min(int(centre + reach + 0.5), size)
            weights = weigh((np.arange(first, last) - centre + 0.5) / widen)
            result[i, first:last] = weights / weights.sum()
            seen[i, first:last] = True
        return result, seen

    return matrix


_triangle = _antialiased(lambda x: np.maximum(1 - np.abs(x), 0), 1.0)
_keys = _antialiased(lambda x: _cubic_weight(x, -0.5), 2.0)


def mix(x: jax.Array, matrix: np.ndarray, seen: np.ndarray, axis: int) -> jax.Array:
    """``x`` with ``axis`` mapped by a static (out, in) matrix, of which each result is made of what it has ``seen``
    alone: a product with the whole row would spread one NaN or infinity over all of them, as 0 times NaN is NaN."""
    finite = jnp.isfinite(lax.stop_gradient(x))
    y = jnp.tensordot(jnp.where(finite, x, 0), jnp.asarray(matrix, x.dtype), ((axis,), (1,)))
    y = jnp.moveaxis(y, -1, axis)
    rest = lax.stop_gradient(jnp.where(finite, 0, x))
    return y + lax.cond(jnp.all(finite), partial(_nothing, y.shape), partial(_seen, matrix, seen, axis), rest)


def _nothing(shape: tuple[int, ...], rest: jax.Array) -> jax.Array:
    return jnp.zeros(shape, rest.dtype)


def _seen(matrix: np.ndarray, seen: np.ndarray, axis: int, rest: jax.Array) -> jax.Array:
    """What is not finite, times the weights of those that see it. A result that sees fewer than another sees its first
    once more: infinity and NaN are what they are when added to themselves."""
    most = int(seen.sum(1).max(initial=0))
    found = [np.flatnonzero(row) for row in seen]
    taps = np.array([np.resize(row, most) if len(row) else np.zeros(most, int) for row in found], int)
    shape = [1] * rest.ndim
    shape[axis] = len(matrix)
    total = jnp.zeros((*rest.shape[:axis], len(matrix), *rest.shape[axis + 1 :]), rest.dtype)
    for tap in taps.reshape(len(matrix), most).T:
        weight = matrix[np.arange(len(matrix)), tap].reshape(shape)
        total = total + jnp.take(rest, tap, axis=axis) * jnp.asarray(weight, rest.dtype)
    return total


def _sizes(
    x: jax.Array, n: int, output_size: Any, factors: Any
) -> tuple[Sequence[int], Sequence[float | None]]:
    """Output sizes and scale factors of the last ``n`` axes. A size that is given overrides the factors."""
    if output_size is not None:
        return output_size, (None,) * n
    return [int(np.floor(x.shape[x.ndim - n + d] * factors[d])) for d in range(n)], factors


def _resize_linear(mixture: Callable[..., Mixture], n: int, vec: bool) -> Any:
    def lower(
        call: Any, x: jax.Array, output_size: Any, align_corners: bool = False, *scales: Any
    ) -> jax.Array:
        if vec:
            sizes, factors = _sizes(x, n, output_size, scales[0] if scales else None)
        else:
            sizes, factors = output_size, tuple(scales) + (None,) * (n - len(scales))
        dtype = out_dtype(call)
        y = cast(x, wide(dtype))
        for d in range(n):
            axis = x.ndim - n + d
            if sizes[d] == x.shape[axis] and not _moves(x.shape[axis], sizes[d], align_corners, factors[d]):
                continue
            y = mix(y, *mixture(x.shape[axis], sizes[d], align_corners, factors[d], _kind(dtype)), axis)
        return cast(y, dtype)

    return lower


def _moves(size: int, out: int, align: bool, factor: float | None) -> bool:
    return not align and factor is not None and int(size * factor) == out and factor != 1.0


def _resize_nearest(n: int, exact: bool, vec: bool) -> Any:
    def lower(call: Any, x: jax.Array, output_size: Any, *scales: Any) -> jax.Array:
        if vec:
            sizes, factors = _sizes(x, n, output_size, scales[0] if scales else None)
        else:
            sizes, factors = output_size, tuple(scales) + (None,) * (n - len(scales))
        for d in range(n):
            axis = x.ndim - n + d
            size, out = x.shape[axis], sizes[d]
            places = _nearest(size, out, factors[d], exact)
            if out % size == 0 and np.array_equal(places, np.arange(out) // (out // size)):
                # A whole factor is a broadcast, whose transpose is a sum and not a scatter.
                x = jnp.repeat(x, out // size, axis=axis)
            else:
                x = jnp.take(x, places, axis=axis)
        return x

    return lower


_LINEAR = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}
for _n in (1, 2, 3):
    lowers(f"aten.upsample_{_LINEAR[_n]}.vec")(_resize_linear(_linear, _n, True))
    lowers(f"aten.upsample_{_LINEAR[_n]}.default")(_resize_linear(_linear, _n, False))
    for _exact, _name in ((False, "upsample_nearest"), (True, "_upsample_nearest_exact")):
        lowers(f"aten.{_name}{_n}d.vec")(_resize_nearest(_n, _exact, True))
        lowers(f"aten.{_name}{_n}d.default")(_resize_nearest(_n, _exact, False))
for _name, _matrix in (
    ("upsample_bicubic2d", _cubic),
    ("_upsample_bilinear2d_aa", _triangle),
    ("_upsample_bicubic2d_aa", _keys),
):
    lowers(f"aten.{_name}.vec")(_resize_linear(_matrix, 2, True))
    lowers(f"aten.{_name}.default")(_resize_linear(_matrix, 2, False))
