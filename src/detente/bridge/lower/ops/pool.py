"""Max and average pooling, adaptive pooling.

A window is a short loop of strided slices along one dimension after the other. Its transpose is padding and a
select, which XLA fuses; select-and-scatter is slow on CPU and has no derivative with dilation.
Ties go to the first element of the window in row-major order, as in ATen, and NaN wins.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.channels_last import Last, plainly
from detente.bridge.lower.dtypes import cast, is_float, lowest, out_dtype, wide
from detente.bridge.lower.ops.reduce import along
from detente.bridge.lower.ops.resize import mix
from detente.bridge.lower.ops.scatter import written
from detente.bridge.lower.table import lowers


def _each(value: Any, n: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * n if len(values) == 1 else values


def _length(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> int:
    """ATen's pooled length: with ``ceil_mode`` a window may hang over the right edge but must start inside."""
    reach = size + 2 * pad - dilation * (kernel - 1) - 1
    length = (reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (length - 1) * stride >= size + pad:
        length -= 1
    return length


def _windows(x: jax.Array, axis: int, count: int, kernel: int, stride: int, dilation: int) -> list[jax.Array]:
    """The ``kernel`` strided slices of ``x`` (already padded) that make ``count`` windows along ``axis``."""
    last = stride * (count - 1) + 1
    return [lax.slice_in_dim(x, k * dilation, k * dilation + last, stride, axis) for k in range(kernel)]


def _padded(x: jax.Array, axis: int, low: int, need: int, fill: Any) -> jax.Array:
    """``x`` with ``low`` fills before it, and after it as many as make ``need`` elements (or fewer elements)."""
    pads = [(0, 0, 0)] * x.ndim
    pads[axis] = (low, need - low - x.shape[axis], 0)
    return lax.pad(x, jnp.asarray(fill, x.dtype), pads)


def _better(new: jax.Array, old: jax.Array) -> jax.Array:
    return (new > old) | jnp.isnan(new) if is_float(new.dtype) else new > old


def _max_along(
    values: list[jax.Array], places: list[jax.Array], first: Sequence[Any] = ()
) -> tuple[jax.Array, jax.Array]:
    """The largest of each place, and where it is. ``first``: where each (but the first) is the first that is no
    padding, which is taken whatever it holds: a window of minus infinities has its largest inside of the picture."""
    best, place = values[0], places[0]
    for value, where, begins in zip_longest(values[1:], places[1:], first):
        take = _better(lax.stop_gradient(value), lax.stop_gradient(best))
        if begins is not None:
            take = take | begins
        best, place = jnp.where(take, value, best), jnp.where(take, where, place)
    return best, place


def _positions(shape: Sequence[int]) -> jax.Array:
    """Row-major position of every element of the pooled dimensions."""
    return jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape)


def max_pool(
    x: jax.Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    behind: int = 0,
) -> tuple[jax.Array, jax.Array]:
    """Pooled values and the row-major position (int32) of each maximum in the input's last ``len(kernel)`` axes, or in
    as many with so many axes ``behind`` them."""
    n = len(kernel)
    first = x.ndim - n - behind
    at = _positions(x.shape[first : first + n])
    place = jnp.broadcast_to(at.reshape(*at.shape, *(1,) * behind), x.shape)
    for d in reversed(range(n)):
        axis = first + d
        count = _length(x.shape[axis], kernel[d], stride[d], padding[d], dilation[d], ceil_mode)
        need = stride[d] * (count - 1) + dilation[d] * (kernel[d] - 1) + 1
        window = (axis, count, kernel[d], stride[d], dilation[d])
        values = _windows(_padded(x, axis, padding[d], need, lowest(x.dtype)), *window)
        places = _windows(_padded(place, axis, padding[d], need, np.iinfo(np.int32).max), *window)
        x, place = _max_along(values, places, _first_inside(x, axis, padding[d], count, window))
    return x, place


def _first_inside(x: jax.Array, axis: int, low: int, count: int, window: tuple[int, ...]) -> list[np.ndarray]:
    """For every element of a window but the first, the windows in which all before it are padding, and it is not."""
    _, _, kernel, stride, dilation = window
    if not low:
        return []
    at = np.arange(count)[:, None] * stride + np.arange(kernel) * dilation - low
    inside = (at >= 0) & (at < x.shape[axis])
    before = np.cumsum(inside, 1) - inside
    shape = [1] * x.ndim
    shape[axis] = count
    return [(inside & (before == 0))[:, k].reshape(shape) for k in range(1, kernel)]


def _max_pool(n: int, with_indices: bool) -> Any:
    def lower(
        call: Any,
        given: jax.Array | Last,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        kernel = _each(kernel_size, n)
        stride = _each(stride, n) if stride not in ((), [], None) else kernel
        # (N, C, L) of a convolution in one dimension may be taken for a picture without a batch.
        behind = int(isinstance(given, Last) and given.ndim == n + 2)
        x = given.array if behind else plainly(given)
        values, places = max_pool(x, kernel, stride, _each(padding, n), _each(dilation, n), ceil_mode, behind)
        told = (values, cast(places, out_dtype(call, 1))) if with_indices else values
        return jax.tree.map(Last, told) if behind else told

    return lower


for _n in (1, 2, 3):
    lowers(f"aten.max_pool{_n}d.default", aware=True)(_max_pool(_n, False))
    lowers(f"aten.max_pool{_n}d_with_indices.default", aware=True)(_max_pool(_n, True))


def _avg_pool(n: int) -> Any:
    def lower(
        call: Any,
        x: jax.Array,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> jax.Array:
        dtype = out_dtype(call)
        kernel, padding = _each(kernel_size, n), _each(padding, n)
        stride = _each(stride, n) if stride not in ((), [], None) else kernel
        total: jax.Array = cast(x, wide(dtype))
        divisor = np.ones((1,) * n)
        for d in range(n):
            axis, size = x.ndim - n + d, x.shape[x.ndim - n + d]
            count = _length(size, kernel[d], stride[d], padding[d], 1, ceil_mode)
            need = stride[d] * (count - 1) + kernel[d]
            padded = _padded(total, axis, padding[d], need, 0)
            total = functools.reduce(operator.add, _windows(padded, axis, count, kernel[d], stride[d], 1))
            starts = np.arange(count) * stride[d] - padding[d]
            ends = np.minimum(starts + kernel[d], size + padding[d])
            if not count_include_pad:
                starts, ends = np.maximum(starts, 0), np.minimum(ends, size)
            divisor = divisor * (ends - starts).reshape(tuple(-1 if e == d else 1 for e in range(n)))
        if divisor_override is not None:
            divisor = np.full((1,) * n, divisor_override)
        return cast(total / jnp.asarray(divisor, total.dtype), dtype)

    return lower


for _n in (1, 2, 3):
    lowers(f"aten.avg_pool{_n}d.default")(_avg_pool(_n))


def _bins(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each adaptive window."""
    steps = np.arange(count)
    return steps * size // count, -((-(steps + 1) * size) // count)


def _adaptive_avg(n: int) -> Any:
    def lower(call: Any, x: jax.Array, output_size: Any) -> jax.Array:
        dtype = out_dtype(call)
        y = cast(x, wide(dtype))
        for d, count in enumerate(_each(output_size, n)):
            axis = x.ndim - n + d
            size = y.shape[axis]
            if count in (size, None):
                continue
            if count == 0 or y.size == 0:
                y = jnp.zeros((*y.shape[:axis], count, *y.shape[axis + 1 :]), y.dtype)
            elif size % count == 0:
                y = jnp.mean(y.reshape(*y.shape[:axis], count, size // count, *y.shape[axis + 1 :]), axis + 1)
            else:
                starts, ends = _bins(size, count)
                cells = np.arange(size)
                seen = (cells >= starts[:, None]) & (cells < ends[:, None])
                y = mix(y, seen / (ends - starts)[:, None], seen, axis)
        return cast(y, dtype)

    return lower


def _adaptive_max(n: int) -> Any:
    def lower(call: Any, x: jax.Array, output_size: Any) -> tuple[jax.Array, jax.Array]:
        place = jnp.broadcast_to(_positions(x.shape[-n:]), x.shape)
        sizes, seen = _each(output_size, n), lax.stop_gradient(x)
        for d in reversed(range(n)):
            axis = x.ndim - n + d
            starts, ends = _bins(x.shape[axis], sizes[d])
            # Windows differ in length by at most one: the short ones see their first element once more.
            longest = int((ends - starts).max()) if len(starts) else 1
            picks = [np.minimum(starts + k, ends - 1) for k in range(longest)]
            values = [jnp.take(seen, p, axis=axis) for p in picks]
            seen, place = _max_along(values, [jnp.take(place, p, axis=axis) for p in picks])
        # Read once more where it was found: its gradient is one scatter, and not one for every pick.
        lead = x.shape[: x.ndim - n]
        flat, at = (t.reshape(*lead, int(np.prod(t.shape[x.ndim - n :]))) for t in (x, place))
        found = along(flat, at, len(lead), True)
        return found.reshape(place.shape), cast(place, out_dtype(call, 1))

    return lower


for _n in (1, 2, 3):
    lowers(f"aten.adaptive_avg_pool{_n}d.default")(_adaptive_avg(_n))
    lowers(f"aten.adaptive_max_pool{_n}d.default")(_adaptive_max(_n))
for _n in (2, 3):
    lowers(f"aten._adaptive_avg_pool{_n}d.default")(_adaptive_avg(_n))


def _unpool(n: int) -> Any:
    def lower(call: Any, x: jax.Array, indices: jax.Array, output_size: Any, *_: Any) -> jax.Array:
        shape = call.out.shape
        lead, size = shape[: len(shape) - n], int(np.prod(shape[len(shape) - n :]))
        flat, places = (
            x.reshape(-1, int(np.prod(x.shape[-n:]))),
            indices.reshape(-1, int(np.prod(x.shape[-n:]))),
        )
        call.fault(jnp.any((places < 0) | (places >= size)), "RuntimeError: found an invalid max index")
        rows = jnp.arange(flat.shape[0])[:, None]
        places = jnp.clip(places, 0, max(size - 1, 0))
        rows = jnp.broadcast_to(rows, places.shape)
        return written(jnp.zeros((int(np.prod(lead)), size), x.dtype), (rows, places), flat).reshape(shape)

    return lower


for _n in (2, 3):
    lowers(f"aten.max_unpool{_n}d.default")(_unpool(_n))
