"""Order: sort, argsort, topk, kthvalue, median, mode, searchsorted, bucketize, histc.

NaN counts as the greatest value and ties keep their order (every sort here is stable). Values come back through a
gather, so gradients flow to the elements that were chosen.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.dtypes import cast, is_bool, is_float, out_dtype, promote
from detente.bridge.lower.ops.arithmetic import hidden
from detente.bridge.lower.ops.reduce import along, shared
from detente.bridge.lower.table import lowers


def order(x: jax.Array, dim: int, descending: bool) -> jax.Array:
    """Stable order of ``x`` along ``dim`` (int32), NaN as the greatest value."""
    x = lax.stop_gradient(x)
    x = x.astype(jnp.int8) if is_bool(x.dtype) else x
    if jax.default_backend() == "cpu" and (key := _key(x)) is not None:
        return _packed(key, dim, descending)
    if descending:
        # Turning over before and after keeps equal elements in their order.
        x = jnp.flip(x, dim)
    places = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    if descending:
        places = jnp.flip(places, dim)
    _, ordered = lax.sort((x, places), dimension=dim, is_stable=True, num_keys=1)
    return jnp.flip(ordered, dim) if descending else ordered


def _packed(key: jax.Array, dim: int, descending: bool) -> jax.Array:
    """``order`` by an int32 key. XLA's CPU compiler sorts pairs of numbers, and floats, by a function that it calls for
    every comparison, and integers by one that it knows: 2,048 of 256 rows in 114 ms as values and places, and in 22 as
    one number of both."""
    key = ~key if descending else key
    places = lax.broadcasted_iota(jnp.int64, key.shape, dim)
    whole = lax.sort((key.astype(jnp.int64) << 32) | places, dimension=dim, is_stable=False)
    return (whole & 0xFFFFFFFF).astype(jnp.int32)


def _key(x: jax.Array) -> jax.Array | None:
    """An int32 in the order of ``x``: NaN the greatest, both zeros one. None where 32 bits do not hold it."""
    if x.dtype in (jnp.int8, jnp.int16, jnp.int32, jnp.uint8, jnp.uint16):
        return x.astype(jnp.int32)
    bits = _bits(x)
    return None if bits is None else jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _bits(x: jax.Array) -> jax.Array | None:
    """Those of float32, the same for all NaN and for both zeros; None where it does not hold it. By bits alone: to
    arithmetic here the smallest numbers are zero."""
    if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        return None
    bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    size = bits & 0x7FFFFFFF
    return jnp.where(size > 0x7F800000, 0x7FC00000, jnp.where(size == 0, 0, bits))


def _first(x: jax.Array, k: int, dim: int, descending: bool) -> jax.Array:
    """The first ``k`` of ``order``. Of a few XLA's CPU compiler has a selection, of floats: 10 of 2,048 in 2 ms where
    sorting takes 22."""
    size = x.shape[dim]
    few = jax.default_backend() == "cpu" and 0 < k <= size // 8
    bits = _bits(lax.stop_gradient(x)) if few else None
    if bits is None:
        return lax.slice_in_dim(order(x, dim, descending), 0, k, 1, dim)
    # The selection goes by bits: what is no number and has a sign is less than all else, and comes last.
    bits = bits if descending else bits ^ jnp.int32(-(1 << 31))
    value = lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.moveaxis(lax.top_k(jnp.moveaxis(value, dim, -1), k)[1], -1, dim)


def _scalar(call: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, jnp.zeros((), out_dtype(call, 1))


@lowers("aten.sort.default")
def _sort(call: Any, x: jax.Array, dim: int = -1, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return _scalar(call, x)
    index = order(x, dim % x.ndim, descending)
    return along(x, index, dim % x.ndim, True), cast(index, out_dtype(call, 1))


@lowers("aten.sort.stable")
def _sort_stable(
    call: Any, x: jax.Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[jax.Array, jax.Array]:
    return _sort(call, x, dim, descending)


@lowers("aten.argsort.default")
def _argsort(call: Any, x: jax.Array, dim: int = -1, descending: bool = False) -> jax.Array:
    return cast(order(x, dim % x.ndim, descending) if x.ndim else jnp.zeros(()), out_dtype(call))


@lowers("aten.argsort.stable")
def _argsort_stable(
    call: Any, x: jax.Array, *, stable: bool = False, dim: int = -1, descending: bool = False
) -> jax.Array:
    return _argsort(call, x, dim, descending)


@lowers("aten.msort.default")
def _msort(call: Any, x: jax.Array) -> jax.Array:
    return along(x, order(x, 0, False), 0, True) if x.ndim else x


@lowers("aten.topk.default")
def _topk(
    call: Any, x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return (
            (x, jnp.zeros((), out_dtype(call, 1)))
            if call.out[0].shape == ()
            else (x[None], jnp.zeros(1, int))
        )
    dim %= x.ndim
    index = _first(x, k, dim, largest)
    return along(x, index, dim, True), cast(index, out_dtype(call, 1))


@lowers("aten.kthvalue.default")
def _kthvalue(
    call: Any, x: jax.Array, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return _scalar(call, x)
    dim %= x.ndim
    index = lax.slice_in_dim(order(x, dim, False), k - 1, k, 1, dim)
    return along(x, index, dim, keepdim), cast(
        index if keepdim else jnp.squeeze(index, dim), out_dtype(call, 1)
    )


def _middle(x: jax.Array, dim: int, skip_nan: bool) -> jax.Array:
    """Place (kept dimension) of the lower median: the first NaN if there is one and it counts."""
    ordered = order(x, dim, False)
    size = x.shape[dim]
    if not is_float(x.dtype):
        return lax.slice_in_dim(ordered, (size - 1) // 2, (size - 1) // 2 + 1, 1, dim)
    valid = size - jnp.sum(jnp.isnan(x), dim, keepdims=True)
    middle = jnp.maximum(valid - 1, 0) // 2
    if not skip_nan:
        middle = jnp.where(valid < size, valid, (size - 1) // 2)
    return jnp.take_along_axis(ordered, middle.astype(jnp.int32), dim, mode="clip")


def _median(skip_nan: bool) -> Any:
    def whole(call: Any, x: jax.Array) -> jax.Array:
        flat = x.reshape(-1)
        if flat.size == 0:
            return jnp.full((), jnp.nan, x.dtype) if is_float(x.dtype) else jnp.zeros((), x.dtype)
        place = _middle(flat, 0, skip_nan)
        if not is_float(x.dtype):
            return along(flat, place, 0, False)
        return shared(flat, along(lax.stop_gradient(flat), place, 0, True), (0,))

    def by_dim(call: Any, x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
        if x.ndim == 0:
            return _scalar(call, x)
        dim %= x.ndim
        index = _middle(x, dim, skip_nan)
        found = index if keepdim else jnp.squeeze(index, dim)
        return along(x, index, dim, keepdim), cast(found, out_dtype(call, 1))

    return whole, by_dim


for _name, _skip in (("median", False), ("nanmedian", True)):
    _whole, _by_dim = _median(_skip)
    lowers(f"aten.{_name}.default")(_whole)
    lowers(f"aten.{_name}.dim")(_by_dim)


@lowers("aten.mode.default")
def _mode(call: Any, x: jax.Array, dim: int = -1, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return _scalar(call, x)
    dim %= x.ndim
    moved = jnp.moveaxis(x, dim, -1)
    often = jnp.sum(moved[..., :, None] == moved[..., None, :], -1)
    # The smallest of the most frequent values; its last place, as ATen gives it.
    ordered = order(moved, moved.ndim - 1, False)
    counts = jnp.take_along_axis(often, ordered, -1)
    value_at = jnp.take_along_axis(ordered, jnp.argmax(counts, -1, keepdims=True), -1)
    value = jnp.take_along_axis(moved, value_at, -1)
    places = lax.broadcasted_iota(jnp.int32, moved.shape, moved.ndim - 1)
    index = jnp.max(jnp.where(moved == value, places, 0), -1, keepdims=True)
    index = jnp.moveaxis(index, -1, dim)
    return along(x, index, dim, keepdim), cast(
        index if keepdim else jnp.squeeze(index, dim), out_dtype(call, 1)
    )


def _search(sequence: jax.Array, values: jax.Array, right: bool) -> jax.Array:
    dtype = promote(sequence, values)
    sequence, values = cast(sequence, dtype), cast(values, dtype)
    side = "right" if right else "left"
    if sequence.ndim == 1:
        return jnp.searchsorted(sequence, values, side=side)
    if sequence.size == 0 or values.size == 0:  # neither can be cut into rows; every place in nothing is 0
        return jnp.zeros(values.shape, int)
    width = values.shape[-1]
    flat = jax.vmap(lambda s, v: jnp.searchsorted(s, v, side=side))(
        sequence.reshape(-1, sequence.shape[-1]), values.reshape(-1, width)
    )
    return flat.reshape(values.shape)


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def _searchsorted(
    call: Any,
    sequence: jax.Array,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, -1)
    return cast(_search(sequence, jnp.asarray(values), right or side == "right"), out_dtype(call))


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def _bucketize(
    call: Any, values: Any, boundaries: jax.Array, *, out_int32: bool = False, right: bool = False
) -> jax.Array:
    return cast(_search(boundaries, jnp.asarray(values), right), out_dtype(call))


@lowers("aten.histc.default")
def _histc(call: Any, x: jax.Array, bins: int = 100, min: float = 0, max: float = 0) -> jax.Array:
    flat = x.reshape(-1)
    kind = flat.dtype if is_float(flat.dtype) else jnp.dtype(jnp.float32)
    values = cast(flat, kind)
    low, high = jnp.asarray(min, kind), jnp.asarray(max, kind)
    if min == max:
        low, high = (jnp.min(values), jnp.max(values)) if flat.size else (low, high)
        same = low == high
        low, high = jnp.where(same, low - 1, low), jnp.where(same, high + 1, high)
    # As ATen has it, and divided indeed: a value on a border belongs to the bin above it.
    moved = (values - low) * bins
    place = jnp.floor(moved / hidden(moved, high - low)).astype(jnp.int32)
    place = jnp.where(values == high, bins - 1, place)
    inside = (values >= low) & (values <= high)
    counts = jnp.zeros(bins, jnp.int32).at[jnp.where(inside, place, bins)].add(1, mode="drop")
    return cast(counts, out_dtype(call))


@lowers(
    "aten.quantile.default", "aten.nanquantile.default", "aten.quantile.scalar", "aten.nanquantile.scalar"
)
def _quantile(
    call: Any,
    x: jax.Array,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> jax.Array:
    x, dim = (x[None], 0) if x.ndim == 0 else (x, dim)
    function = jnp.nanquantile if "nanquantile" in call.node.op else jnp.quantile
    result = function(x, jnp.asarray(q, x.dtype), dim, method=interpolation, keepdims=keepdim)
    return cast(result.reshape(call.out.shape), out_dtype(call))
