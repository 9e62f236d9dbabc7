"""embedding_bag: sums, means and maxima of embedding rows by bag."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.lower.bounds import checked
from detente.bridge.lower.dtypes import cast, out_dtype, wide
from detente.bridge.lower.table import lowers

_SUM, _MEAN, _MAX = 0, 1, 2


def _bag_of(count: int, offsets: jax.Array) -> jax.Array:
    """The bag of each of ``count`` indices: the last offset that is not after it."""
    return jnp.searchsorted(offsets, jnp.arange(count, dtype=offsets.dtype), side="right") - 1


@lowers(
    "aten.embedding_bag.default",
    "aten.embedding_bag.padding_idx",
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
)
def _embedding_bag(
    call: Any,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[jax.Array, ...]:
    dtype = out_dtype(call, 0)
    bags = call.out[0].shape[0]
    safe = checked(
        call, indices, weight.shape[0], "RuntimeError: embedding_bag: an index is out of range", wrap=False
    )
    rows = cast(jnp.take(weight, safe, axis=0, mode="clip"), wide(dtype))
    if scale_grad_by_freq:
        often = jnp.zeros(weight.shape[0], rows.dtype).at[safe].add(1)[safe][:, None]
        rows = jax.lax.stop_gradient(rows) + (rows - jax.lax.stop_gradient(rows)) / often
    starts = offsets[:bags]
    if offsets.shape[0]:
        call.fault(offsets[0] != 0, "RuntimeError: embedding_bag: offsets[0] has to be 0")
        beyond = jnp.any(offsets > indices.shape[0])
        call.fault(beyond, f"RuntimeError: embedding_bag: an offset is beyond the {indices.shape[0]} indices")
    bag = _bag_of(indices.shape[0], starts)
    counts = jnp.ones(indices.shape, bool)
    # -1 is "none" for the internal operator and the last row for the public one.
    inner = call.node.op.startswith("aten._")
    if padding_idx is not None and not (padding_idx == -1 and (inner or call.node.op.endswith(".default"))):
        counts = indices != (padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx)
    if include_last_offset:
        counts = counts & (jnp.arange(indices.shape[0]) < offsets[-1])
    if per_sample_weights is not None:
        rows = rows * cast(per_sample_weights, rows.dtype)[:, None]
    size = jnp.zeros(bags, jnp.int32).at[bag].add(counts.astype(jnp.int32))
    if mode == _MAX:
        empty = jnp.full((bags, rows.shape[1]), -jnp.inf, rows.dtype)
        top = empty.at[bag].max(jnp.where(counts[:, None], rows, -jnp.inf))
        result = jnp.where(size[:, None] > 0, top, 0)
    else:
        total = jnp.zeros((bags, rows.shape[1]), rows.dtype).at[bag].add(jnp.where(counts[:, None], rows, 0))
        result = total / jnp.maximum(size, 1).astype(total.dtype)[:, None] if mode == _MEAN else total
    # The other outputs serve torch's backward pass; ours differentiates this function.
    rest = [jnp.zeros(o.shape, out_dtype(call, i)) for i, o in enumerate(call.out) if i]
    return cast(result, dtype), *rest
