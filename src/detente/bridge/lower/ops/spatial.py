"""Images rearranged or sampled: pixel_shuffle, unfold, fold, grid_sample, affine_grid, channel_shuffle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.dtypes import cast, out_dtype, wide
from detente.bridge.lower.table import lowers


@lowers("aten.pixel_shuffle.default")
def _pixel_shuffle(call: Any, x: jax.Array, factor: int) -> jax.Array:
    *lead, c, h, w = x.shape
    y = x.reshape(*lead, c // factor**2, factor, factor, h, w)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return jnp.transpose(y, order).reshape(*lead, c // factor**2, h * factor, w * factor)


@lowers("aten.pixel_unshuffle.default")
def _pixel_unshuffle(call: Any, x: jax.Array, factor: int) -> jax.Array:
    *lead, c, h, w = x.shape
    y = x.reshape(*lead, c, h // factor, factor, w // factor, factor)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return jnp.transpose(y, order).reshape(*lead, c * factor**2, h // factor, w // factor)


@lowers("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def _channel_shuffle(call: Any, x: jax.Array, groups: int) -> jax.Array:
    count, channels, *rest = x.shape
    return jnp.swapaxes(x.reshape(count, groups, channels // groups, *rest), 1, 2).reshape(x.shape)


@lowers("aten.unfold.default", "aten.unfold_copy.default")
def _unfold(call: Any, x: jax.Array, dim: int, size: int, step: int) -> jax.Array:
    if x.ndim == 0:
        return x.reshape(1)[:size]
    dim %= x.ndim
    starts = np.arange(0, x.shape[dim] - size + 1, step)
    places = starts[:, None] + np.arange(size)
    taken = jnp.take(x, places.reshape(-1), axis=dim)
    taken = taken.reshape(*x.shape[:dim], *places.shape, *x.shape[dim + 1 :])
    return jnp.moveaxis(taken, dim + 1, -1)


@lowers("aten.unfold_backward.default")
def _unfold_backward(
    call: Any, windows: jax.Array, sizes: Sequence[int], dim: int, size: int, step: int
) -> jax.Array:
    """The sum of all windows at the places that they were taken from: a write through ``unfold`` becomes this."""
    spread = jnp.zeros(tuple(sizes), windows.dtype)
    if spread.ndim == 0:
        return windows.sum()
    dim %= spread.ndim
    starts = np.arange(0, sizes[dim] - size + 1, step)
    places = (starts[:, None] + np.arange(size)).reshape(-1)
    lined = jnp.moveaxis(jnp.moveaxis(windows, -1, dim + 1), (dim, dim + 1), (0, 1))
    lined = lined.reshape(places.size, *lined.shape[2:])
    return jnp.moveaxis(jnp.moveaxis(spread, dim, 0).at[places].add(lined), 0, dim)


def _columns(
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> tuple[list[int], list[tuple[int, int]]]:
    """Blocks per dimension, and the offset of every kernel element."""
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    ]
    offsets = list(product(*(range(0, k * d, d) for k, d in zip(kernel, dilation, strict=True))))
    return counts, offsets  # type: ignore[return-value]


@lowers("aten.im2col.default")
def _im2col(
    call: Any,
    x: jax.Array,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    single = x.ndim == 3
    x = x[None] if single else x
    (height, width), offsets = _columns(x.shape[2:], kernel, dilation, padding, stride)
    padded = jnp.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    cut = [
        padded[
            :,
            :,
            i : i + stride[0] * (height - 1) + 1 : stride[0],
            j : j + stride[1] * (width - 1) + 1 : stride[1],
        ]
        for i, j in offsets
    ]
    y = jnp.stack(cut, 2).reshape(x.shape[0], x.shape[1] * len(offsets), height * width)
    return y[0] if single else y


@lowers("aten.col2im.default")
def _col2im(
    call: Any,
    x: jax.Array,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    single = x.ndim == 2
    x = x[None] if single else x
    (height, width), offsets = _columns(size, kernel, dilation, padding, stride)
    blocks = x.reshape(x.shape[0], x.shape[1] // len(offsets), len(offsets), height, width)
    out = jnp.zeros((*blocks.shape[:2], size[0] + 2 * padding[0], size[1] + 2 * padding[1]), x.dtype)
    for k, (i, j) in enumerate(offsets):
        rows = slice(i, i + stride[0] * (height - 1) + 1, stride[0])
        columns = slice(j, j + stride[1] * (width - 1) + 1, stride[1])
        out = out.at[:, :, rows, columns].add(blocks[:, :, k])
    out = out[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]
    return out[0] if single else out


# grid_sample's codes
_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _to_pixels(grid: jax.Array, size: int, align: bool) -> jax.Array:
    return (grid + 1) / 2 * (size - 1) if align else ((grid + 1) * size - 1) / 2


def _reflected(x: jax.Array, size: int, align: bool) -> jax.Array:
    low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
    if span == 0:
        return jnp.zeros_like(x)
    away = jnp.abs(x - low)
    extra = lax.rem(away, jnp.full_like(away, span))
    flips = jnp.floor(lax.stop_gradient(away) / span)
    return jnp.where(flips % 2 == 0, extra + low, span - extra + low)


def _bounded(x: jax.Array, size: int, padding: int, align: bool, volume: bool = False) -> jax.Array:
    """Source coordinates after the padding rule; zeros padding leaves them and is applied when reading."""
    if padding == _ZEROS:
        return x
    if padding == _REFLECTION:
        x = _reflected(x, size, align)
    # ATen's kernel for pictures takes NaN for the first pixel, that for volumes for the last one.
    x = jnp.where(jnp.isnan(x), size - 1 if volume else 0, x)
    # The gradient on the border is zero, so a `where` and not a clip.
    return jnp.where(x <= 0, 0, jnp.where(x >= size - 1, size - 1, x)).astype(x.dtype)


def _inside(x: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    inside = jnp.ones(places[0].shape, bool)
    for place, size in zip(places, x.shape[2:], strict=True):
        inside = inside & (place >= 0) & (place <= size - 1)
    return inside


def _read(x: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    """``x`` (N, C, *size) at integer float coordinates (N, *out), zeros outside: (N, C, *out)."""
    flat = jnp.zeros(places[0].shape, jnp.int32)
    for place, size in zip(places, x.shape[2:], strict=True):
        # NaN and huge coordinates are outside; the clip keeps the conversion defined.
        whole = jnp.clip(jnp.nan_to_num(place, nan=-1.0), -1, size).astype(jnp.int32)
        flat = flat * size + jnp.clip(whole, 0, size - 1)
    count, channels = x.shape[:2]
    rows = x.reshape(count, channels, -1)
    taken = jnp.take_along_axis(rows, flat.reshape(count, 1, -1), 2, mode="clip")
    taken = taken.reshape(count, channels, *places[0].shape[1:])
    return jnp.where(_inside(x, places)[:, None], taken, 0)


def _sample_linear(x: jax.Array, at: Sequence[jax.Array]) -> jax.Array:
    total: Any = 0
    lows = [jnp.floor(lax.stop_gradient(a)) for a in at]
    for corner in product((0, 1), repeat=len(at)):
        weight: Any = 1
        for a, low, side in zip(at, lows, corner, strict=True):
            weight = weight * ((a - low) if side else (low + 1 - a))
        places = [low + side for low, side in zip(lows, corner, strict=True)]
        if len(at) == 3:
            # ATen's kernel for volumes passes over what is outside, whatever its weight is; that for pictures does not.
            weight = jnp.where(_inside(x, places), weight, 0)
        total = total + _read(x, places) * weight[:, None]
    return total


def _cubic_weights(t: jax.Array) -> list[jax.Array]:
    a = -0.75

    def near(s: jax.Array) -> jax.Array:
        return ((a + 2) * s - (a + 3)) * s * s + 1

    def far(s: jax.Array) -> jax.Array:
        return ((a * s - 5 * a) * s + 8 * a) * s - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _sample_cubic(
    x: jax.Array, at: Sequence[jax.Array], bound: Callable[[jax.Array, int], jax.Array]
) -> jax.Array:
    lows = [jnp.floor(lax.stop_gradient(a)) for a in at]
    weights = [_cubic_weights(a - low) for a, low in zip(at, lows, strict=True)]
    total: Any = 0
    for i, j in product(range(4), repeat=2):
        places = [bound(lows[0] + i - 1, 0), bound(lows[1] + j - 1, 1)]
        total = total + _read(x, places) * (weights[0][i] * weights[1][j])[:, None]
    return total


def _grid_sample(call: Any, x: jax.Array, grid: jax.Array, mode: int, padding: int, align: bool) -> jax.Array:
    dtype = out_dtype(call)
    kind = wide(dtype)
    x, grid = cast(x, kind), cast(grid, kind)
    sizes = x.shape[2:]
    # The grid's last axis is (x, y[, z]); arrays are (…, y, x).
    at = [_to_pixels(grid[..., len(sizes) - 1 - d], size, align) for d, size in enumerate(sizes)]
    if mode == _BICUBIC:
        return cast(_sample_cubic(x, at, lambda p, d: _bounded(p, sizes[d], padding, align)), dtype)
    volume = len(sizes) == 3
    at = [_bounded(a, size, padding, align, volume) for a, size in zip(at, sizes, strict=True)]
    if mode == _NEAREST:
        return cast(_read(x, [jnp.round(lax.stop_gradient(a)) for a in at]), dtype)
    return cast(_sample_linear(x, at), dtype)


@lowers("aten.grid_sampler.default", "aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def _grid_sampler(
    call: Any, x: jax.Array, grid: jax.Array, mode: int, padding: int, align_corners: bool
) -> jax.Array:
    return _grid_sample(call, x, grid, mode, padding, align_corners)


@lowers("aten.affine_grid_generator.default")
def _affine_grid(call: Any, theta: jax.Array, size: Sequence[int], align_corners: bool) -> jax.Array:
    dtype = out_dtype(call)
    axes = []
    for n in reversed(size[2:]):
        steps = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
        axes.append(steps if align_corners else steps * (n - 1) / n)
    # axes are (x, y[, z]); the grid is indexed (…, y, x).
    mesh = np.meshgrid(*reversed(axes), indexing="ij")[::-1]
    base = jnp.asarray(np.stack([*mesh, np.ones_like(mesh[0])], -1), theta.dtype)
    flat = base.reshape(1, -1, base.shape[-1])
    return cast(jnp.matmul(flat, jnp.swapaxes(theta, 1, 2)).reshape(call.out.shape), dtype)
