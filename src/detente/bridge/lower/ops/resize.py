"""interpolate: nearest, linear, cubic, area with antialias; one small static matrix per resized dimension.

Source coordinates are static, so they are computed while lowering, in the dtype that ATen computes them in (float32,
or float64 for float64 inputs), and the same pixels are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


def _linear(size: int, out: int, align: bool, scale: float | None, kind: type) -> np.ndarray:
    """(out, size) weights of linear interpolation."""
    source = _sources(size, out, align, scale, kind, False)
    low = np.minimum(source.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    share = np.clip(source - low, 0, 1).astype(kind)
    matrix = np.zeros((out, size), kind)
    rows = np.arange(out)
    np.add.at(matrix, (rows, low), 1 - share)
    np.add.at(matrix, (rows, high), share)
    return matrix


def _cubic_weight(x: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _cubic(size: int, out: int, align: bool, scale: float | None, kind: type) -> np.ndarray:
    """(out, size) weights of cubic convolution with a = -0.75, borders repeated."""
    source = _sources(size, out, align, scale, kind, True)
    base = np.floor(source)
    share = (source - base).astype(kind)
    matrix = np.zeros((out, size), kind)
    for k in range(-1, 3):
        column = np.clip(base.astype(np.int64) + k, 0, size - 1)
        np.add.at(matrix, (np.arange(out), column), _cubic_weight(share - k, -0.75).astype(kind))
    return matrix


def _antialiased(weigh: Callable[[np.ndarray], np.ndarray], support: float) -> Callable[..., np.ndarray]:
    def matrix(size: int, out: int, align: bool, scale: float | None, kind: type) -> np.ndarray:
        step = _step(size, out, align, scale, kind)
        widen = max(float(step), 1.0)
        reach = support * widen
        result = np.zeros((out, size), kind)
        for i in range(out):
            centre = float(step) * (i + 0.5)
            first = max(int(centre - reach + 0.5), 0)
            last = min(int(centre + reach + 0.5), size)
            weights = weigh((np.arange(first, last) - centre + 0.5) / widen)
            result[i, first:last] = weights / weights.sum()
        return result

    return matrix


_triangle = _antialiased(lambda x: np.maximum(1 - np.abs(x), 0), 1.0)
_keys = _antialiased(lambda x: _cubic_weight(x, -0.5), 2.0)


def mix(x: jax.Array, matrix: np.ndarray, axis: int) -> jax.Array:
    """``x`` with ``axis`` mapped by a static (out, in) matrix."""
    y = jnp.tensordot(x, jnp.asarray(matrix, x.dtype), ((axis,), (1,)))
    return jnp.moveaxis(y, -1, axis)


def _sizes(
    x: jax.Array, n: int, output_size: Any, factors: Any
) -> tuple[Sequence[int], Sequence[float | None]]:
    """Output sizes and scale factors of the last ``n`` axes. A size that is given overrides the factors."""
    if output_size is not None:
        return output_size, (None,) * n
    return [int(np.floor(x.shape[x.ndim - n + d] * factors[d])) for d in range(n)], factors


def _resize_linear(matrix: Callable[..., np.ndarray], n: int, vec: bool) -> Any:
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
            y = mix(y, matrix(x.shape[axis], sizes[d], align_corners, factors[d], _kind(dtype)), axis)
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
