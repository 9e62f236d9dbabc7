"""segment_reduce, masked gathers with a fill, and the guarded index forms that export makes of padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.dtypes import cast, highest, lowest, out_dtype, wide
from detente.bridge.lower.ops.reduce import shared
from detente.bridge.lower.table import lowers


@lowers("aten._unsafe_masked_index.default")
def _unsafe_masked_index(
    call: Any, x: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], fill: Any
) -> jax.Array:
    """``where(mask, x[indices], fill)``; indices under a False mask may be anything."""
    places = _inside(x, indices)
    return jnp.where(mask, x[places], cast(fill, x.dtype))


@lowers("aten._unsafe_masked_index_put_accumulate.default")
def _unsafe_masked_index_put(
    call: Any, x: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array
) -> jax.Array:
    return x.at[_inside(x, indices)].add(jnp.where(mask, cast(values, x.dtype), 0))


def _inside(x: jax.Array, indices: Sequence[jax.Array | None]) -> tuple[Any, ...]:
    return tuple(
        slice(None) if index is None else jnp.clip(jnp.where(index < 0, index + n, index), 0, max(n - 1, 0))
        for index, n in zip(indices, x.shape, strict=False)
    )


@lowers("aten.segment_reduce.default")
def _segment_reduce(
    call: Any,
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> jax.Array:
    out = out_dtype(call)
    kind = wide(out)
    data = cast(data, kind)
    if offsets is None:
        assert lengths is not None
        ends = jnp.cumsum(lengths, -1)
        starts = ends - lengths
    else:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    axis %= data.ndim
    size = data.shape[axis]
    places = jnp.arange(size, dtype=starts.dtype)
    # (…, segments, size): which elements each segment has.
    member = (places >= starts[..., None]) & (places < ends[..., None])
    member = member.reshape(member.shape + (1,) * (data.ndim - axis - 1))
    values = jnp.expand_dims(data, axis)
    identity = {"sum": 0, "mean": 0, "prod": 1, "max": lowest(out), "min": highest(out)}[reduce]
    start = identity if initial is None else initial
    kept = jnp.where(member, values, jnp.asarray(identity, kind))
    over = axis + 1
    count = jnp.sum(member, over)
    if reduce in ("sum", "mean"):
        total = jnp.sum(kept, over) + jnp.asarray(start, kind)
        if reduce == "sum":
            return cast(total, out)
        empty = jnp.asarray(jnp.nan if initial is None else initial, kind)
        return cast(jnp.where(count == 0, empty, total / jnp.maximum(count, 1).astype(kind)), out)
    if reduce == "prod":
        return cast(jnp.prod(kept, over) * jnp.asarray(start, kind), out)
    find = jnp.max if reduce == "max" else jnp.min
    # An element may equal the identity that stands for the other segments' elements.
    extreme = shared(kept, find(lax.stop_gradient(kept), over, keepdims=True), (over,), among=member)
    bound = jnp.asarray(start, kind)
    if initial is None:
        return cast(extreme, out)
    beyond = extreme > bound if reduce == "max" else extreme < bound
    return cast(jnp.where(lax.stop_gradient(beyond) | jnp.isnan(extreme), extreme, bound), out)
