"""Reading and writing by index: embedding, gather, index, index_put, take.

Reading through a boolean mask makes a shape that depends on data: refused. Writing through one does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.bounds import checked
from detente.bridge.lower.dtypes import cast, out_dtype, spread
from detente.bridge.lower.ops.scatter import reduce_at, written
from detente.bridge.lower.table import lowers
from detente.bridge.refusal import refuse


@lowers("aten.embedding.default")
def _embedding(
    call: Any,
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    count = weight.shape[0]
    indices = checked(call, indices, count, "IndexError: index out of range in self", wrap=False)
    rows = jnp.take(weight, indices, axis=0, mode="clip")
    if scale_grad_by_freq:
        often = jnp.zeros(count, weight.dtype).at[indices].add(1)[indices][..., None]
        rows = lax.stop_gradient(rows) + (rows - lax.stop_gradient(rows)) / often
    if padding_idx >= 0:
        rows = jnp.where((indices == padding_idx)[..., None], lax.stop_gradient(rows), rows)
    return rows


@lowers("aten.embedding_renorm.default")
def _embedding_renorm(
    call: Any, weight: jax.Array, indices: jax.Array, max_norm: float, norm_type: float
) -> jax.Array:
    used = jnp.zeros(weight.shape[0], bool).at[indices.reshape(-1)].set(True)[:, None]
    norm = jnp.sum(jnp.abs(weight) ** norm_type, 1, keepdims=True) ** (1 / norm_type)
    return jnp.where(used & (norm > max_norm), weight * (max_norm / (norm + 1e-7)), weight)


@lowers("aten.gather.default")
def _gather(call: Any, x: jax.Array, dim: int, index: jax.Array, sparse_grad: bool = False) -> jax.Array:
    if index.size == 0:
        return jnp.zeros(call.out.shape, x.dtype)
    if x.ndim == 0:
        checked(call, index, 1, "RuntimeError: index out of bounds for dimension 0 with size 1", wrap=False)
        return spread(x, index.shape)
    if index.ndim == 0:
        index = index.reshape(1)
    dim %= x.ndim
    size = x.shape[dim]
    message = f"RuntimeError: index out of bounds for dimension {dim} with size {size}"
    index = checked(call, index, size, message, wrap=False)
    # The index may be shorter than x in the other dimensions.
    cut = tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape))
    return jnp.take_along_axis(x[cut], index, dim, mode="clip").reshape(call.out.shape)


@lowers("aten.index_select.default", "aten.index_select_backward.default")
def _index_select(call: Any, x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    index = index.reshape(-1)
    if x.ndim == 0:
        return jnp.broadcast_to(x, call.out.shape)
    index = checked(call, index, x.shape[dim], "IndexError: index out of range in self", wrap=False)
    return jnp.take(x, index, axis=dim, mode="clip")


def _along(
    call: Any, x: jax.Array, dim: int, index: jax.Array, error: str = "IndexError", *, wrap: bool = False
) -> tuple[jax.Array, tuple[Any, ...]]:
    """``x`` with at least one axis, and where ``index`` points. ``index_fill`` alone counts from the end (``wrap``)."""
    if x.ndim == 0:
        x = x.reshape(1)
    dim %= x.ndim
    message = f"{error}: index is out of bounds for dimension {dim} with size {x.shape[dim]}"
    index = checked(call, index.reshape(-1), x.shape[dim], message, wrap=wrap)
    return x, (slice(None),) * dim + (index,)


@lowers("aten.index_add.default")
def _index_add(
    call: Any, x: jax.Array, dim: int, index: jax.Array, source: jax.Array, alpha: Any = 1
) -> jax.Array:
    full, place = _along(call, x, dim, index, "RuntimeError")
    source = cast(source, x.dtype)
    if alpha != 1:
        source = source * jnp.asarray(alpha, x.dtype)
    shape = full.at[place].get().shape
    return full.at[place].add(source.reshape(shape)).reshape(x.shape)


@lowers("aten.index_copy.default")
def _index_copy(call: Any, x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    full, place = _along(call, x, dim, index)
    shape = full.at[place].get().shape
    return written(full, place, cast(source, x.dtype).reshape(shape)).reshape(x.shape)


@lowers("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def _index_fill(call: Any, x: jax.Array, dim: int, index: jax.Array, value: Any) -> jax.Array:
    full, place = _along(call, x, dim, index, wrap=True)
    # A place that is named twice counts once in the gradient of the number, as in torch.
    return full.at[place].set(cast(value, x.dtype)).reshape(x.shape)


@lowers("aten.index_reduce.default")
def _index_reduce(
    call: Any,
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    include_self: bool = True,
) -> jax.Array:
    full, place = _along(call, x, dim, index, "RuntimeError")
    shape = full.at[place].get().shape
    return reduce_at(full, place, cast(source, x.dtype).reshape(shape), reduce, include_self).reshape(x.shape)


def _indices(call: Any, x: jax.Array, indices: Sequence[jax.Array | None]) -> tuple[Any, ...]:
    places: list[Any] = []
    for index in indices:
        dim = len(places)
        if index is None:
            places.append(slice(None))
        elif index.dtype in (bool, jnp.uint8):
            raise refuse(
                "dynamic-shape",
                f"{call.node.op} with a boolean mask makes a tensor whose shape depends on data",
                call.node.where,
                "use torch.where(mask, x, other), or multiply by the mask",
            )
        else:
            size = x.shape[dim]
            message = f"IndexError: index is out of bounds for dimension {dim} with size {size}"
            places.append(checked(call, index, size, message))
    return tuple(places)


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _index(call: Any, x: jax.Array, indices: Sequence[jax.Array | None]) -> jax.Array:
    return x[_indices(call, x, indices)]


def _masked_put(
    call: Any, x: jax.Array, lead: int, mask: jax.Array, values: jax.Array, accumulate: bool
) -> jax.Array:
    """``x[:, ..., mask] = values``, with ``lead`` full dimensions before those of the mask. The n-th True takes
    the n-th row of values (one row for all, if there is one): a running count, so every shape stays static."""
    rows = x.ndim - lead - mask.ndim  # dimensions after the mask's
    axis = values.ndim - rows - 1  # of values, along which its rows lie
    if axis >= 0 and values.shape[axis] != 1:
        order = jnp.cumsum(mask.reshape(-1).astype(jnp.int32)) - 1
        count = values.shape[axis]
        message = f"RuntimeError: shape mismatch: {count} rows are written through a mask of another number"
        total = order[-1] + 1 if order.size else jnp.int32(0)
        call.fault(total != count, message)
        if not count:  # the mask has no True
            return x
        taken = jnp.take(values, jnp.clip(order, 0, max(count - 1, 0)), axis=axis, mode="clip")
        values = taken.reshape(values.shape[:axis] + mask.shape + values.shape[axis + 1 :])
    elif axis >= 0:
        values = values.reshape(values.shape[:axis] + (1,) * mask.ndim + values.shape[axis + 1 :])
    values = cast(values, x.dtype)
    mask = mask.reshape(mask.shape + (1,) * rows)
    return jnp.where(mask, x + values if accumulate else values, x)


def _trailing_nones(indices: Sequence[Any]) -> int:
    return next(n for n, index in enumerate(reversed(indices)) if index is not None)


@lowers("aten.index_put.default", "aten._unsafe_index_put.default", "aten._index_put_impl.default")
def _index_put(
    call: Any,
    x: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool = False,
    unsafe: bool = False,
) -> jax.Array:
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype in (bool, jnp.uint8):
        return _masked_put(
            call, x, len(indices) - 1 - _trailing_nones(indices), given[0].astype(bool), values, accumulate
        )
    place = _indices(call, x, indices)
    shape = jax.eval_shape(lambda t: t[place], x).shape
    values = spread(cast(values, x.dtype), shape)
    return x.at[place].add(values) if accumulate else written(x, place, values)


@lowers("aten.take.default")
def _take(call: Any, x: jax.Array, index: jax.Array) -> jax.Array:
    return x.reshape(-1)[checked(call, index, x.size, "IndexError: out of range: tried to access index")]


@lowers("aten.put.default")
def _put(call: Any, x: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False) -> jax.Array:
    flat = x.reshape(-1)
    index = checked(call, index, x.size, "IndexError: put(): index out of range").reshape(-1)
    source = cast(source, x.dtype).reshape(-1)
    return (flat.at[index].add(source) if accumulate else written(flat, (index,), source)).reshape(x.shape)


@lowers("aten.take_along_dim.default")
def _take_along_dim(call: Any, x: jax.Array, index: jax.Array, dim: int | None = None) -> jax.Array:
    if dim is None:
        x, index, dim = x.reshape(-1), index.reshape(-1), 0
    dim %= x.ndim
    message = f"IndexError: index is out of bounds for dimension {dim} with size {x.shape[dim]}"
    index = checked(call, index, x.shape[dim], message)
    shape = np.broadcast_shapes(
        *(tuple(1 if d == dim else n for d, n in enumerate(t.shape)) for t in (x, index))
    )
    x, index = (
        spread(t, tuple(t.shape[d] if d == dim else n for d, n in enumerate(shape))) for t in (x, index)
    )
    return jnp.take_along_axis(x, index, dim, mode="clip")


@lowers("aten.masked_scatter.default")
def _masked_scatter(call: Any, x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    # The n-th True takes the n-th element of source: a running count, so the shape stays static.
    x = spread(x, call.out.shape)
    mask = jnp.broadcast_to(mask, x.shape).reshape(-1)
    order = jnp.cumsum(mask.astype(jnp.int32)) - 1
    total = order[-1] + 1 if order.size else 0
    call.fault(
        jnp.asarray(total > source.size), "RuntimeError: masked_scatter: expected self.numel() elements"
    )
    taken = source.reshape(-1)[jnp.clip(order, 0, max(source.size - 1, 0))] if source.size else x.reshape(-1)
    return jnp.where(mask, cast(taken, x.dtype), x.reshape(-1)).reshape(x.shape)


def refuse_dynamic(call: Any, *_: Any, **__: Any) -> Any:
    """Refuses an operator whose result has a shape that depends on data."""
    raise refuse(
        "dynamic-shape",
        f"{call.node.op} makes a tensor whose shape depends on data, which XLA cannot compile",
        call.node.where,
        "keep the full shape and mask it (torch.where), or compute this part outside of the step",
    )


for _name in (
    "masked_select.default",
    "nonzero.default",
    "nonzero_numpy.default",
    "argwhere.default",
    "unique_dim.default",
    "_unique2.default",
    "unique_consecutive.default",
    "repeat_interleave.Tensor",
    "repeat_interleave.self_Tensor",
    "bincount.default",
):
    lowers(f"aten.{_name}", note="refused: the shape depends on data")(refuse_dynamic)


@lowers("aten.nonzero_static.default")
def _nonzero_static(call: Any, x: jax.Array, size: int, fill_value: int = -1) -> jax.Array:
    if x.ndim == 0:
        return jnp.zeros(call.out.shape, out_dtype(call))
    if x.size == 0:  # jnp.nonzero forgets its fill value there
        return jnp.full(call.out.shape, fill_value, out_dtype(call))
    found = jnp.nonzero(x, size=size, fill_value=fill_value)
    return cast(jnp.stack(found, -1), out_dtype(call))
