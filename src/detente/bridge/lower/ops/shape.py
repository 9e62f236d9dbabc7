"""Layout without arithmetic: view, permute, expand, slice, split, cat, pad, flip, roll and the copies of these.

Views are values here: the graph is functional, so an alias and a copy are the same array.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.channels_last import Last, last, plainly
from detente.bridge.lower.dtypes import cast, is_bool, out_dtype, spread
from detente.bridge.lower.table import lowers

for _name in (
    "alias",
    "alias_copy",
    "clone",
    "contiguous",
    "detach_copy",
    "lift",
    "lift_fresh",
    "lift_fresh_copy",
):
    lowers(f"aten.{_name}.default")(lambda call, x, **_: x)


@lowers(
    "aten.detach.default", "aten.detach_.default", note="stop_gradient: what torch does not differentiate"
)
def _detach(call: Any, x: jax.Array) -> jax.Array:
    return lax.stop_gradient(x)


@lowers(
    "aten._to_copy.default",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten._cast_Float.default",
    "prims.convert_element_type.default",
    "aten.type_as.default",
)
def _to_copy(call: Any, x: jax.Array, *_: Any, **__: Any) -> jax.Array:
    return cast(x, out_dtype(call), real_part=True)


@lowers("aten.to_dense.default", note="of what is dense already: no sparse tensor comes into a program")
def _to_dense(call: Any, x: jax.Array, *_: Any, **__: Any) -> jax.Array:
    return cast(x, out_dtype(call))


@lowers("aten.copy.default")
def _copy(call: Any, x: jax.Array, source: jax.Array, non_blocking: bool = False) -> jax.Array:
    return spread(cast(source, x.dtype, real_part=True), x.shape)


@lowers(
    "aten.view.default",
    "aten.view_copy.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_alias.default",
    "aten._reshape_copy.default",
)
def _view(call: Any, x: jax.Array, size: Sequence[int], *_: Any) -> jax.Array:
    if 0 in x.shape and -1 in size:
        size = call.out.shape
    return jnp.reshape(x, tuple(size))


@lowers("aten.view_as.default", "aten.reshape_as.default")
def _view_as(call: Any, x: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.reshape(x, other.shape)


@lowers("aten.view.dtype", "aten.view_copy.dtype")
def _view_dtype(call: Any, x: jax.Array, dtype: Any) -> jax.Array:
    target = out_dtype(call)
    if is_bool(jnp.dtype(x.dtype)) or is_bool(target):
        return x.astype(target)
    ratio = x.dtype.itemsize / target.itemsize
    if ratio < 1:
        x = x.reshape(*x.shape[:-1], -1, int(1 / ratio))
    cut = lax.bitcast_convert_type(x, target)
    return cut.reshape(*cut.shape[:-2], -1) if ratio > 1 else cut


@lowers("aten.flatten.using_ints")
def _flatten(call: Any, x: jax.Array, start_dim: int = 0, end_dim: int = -1) -> jax.Array:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape(*x.shape[:start], int(np.prod(x.shape[start : end + 1])), *x.shape[end + 1 :])


@lowers("aten.unflatten.int")
def _unflatten(call: Any, x: jax.Array, dim: int, sizes: Sequence[int]) -> jax.Array:
    dim %= x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


@lowers("aten.expand.default", "aten.expand_copy.default")
def _expand(call: Any, x: jax.Array, size: Sequence[int], implicit: bool = False) -> jax.Array:
    lead = len(size) - x.ndim
    return spread(x, [x.shape[i - lead] if n == -1 else n for i, n in enumerate(size)])


@lowers("aten.expand_as.default")
def _expand_as(call: Any, x: jax.Array, other: jax.Array) -> jax.Array:
    return spread(x, other.shape)


@lowers("aten.broadcast_to.default")
def _broadcast_to(call: Any, x: jax.Array, size: Sequence[int]) -> jax.Array:
    return _expand(call, x, size)


@lowers("aten.broadcast_tensors.default")
def _broadcast_tensors(call: Any, tensors: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    shape = jnp.broadcast_shapes(*(x.shape for x in tensors))
    return tuple(spread(x, shape) for x in tensors)


@lowers("aten.meshgrid.default", "aten.meshgrid.indexing")
def _meshgrid(call: Any, tensors: Sequence[jax.Array], indexing: str = "ij") -> tuple[jax.Array, ...]:
    return tuple(jnp.meshgrid(*(jnp.atleast_1d(t) for t in tensors), indexing=indexing))


@lowers("aten.permute.default", "aten.permute_copy.default")
def _permute(call: Any, x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.transpose(x, tuple(d % x.ndim for d in dims))


@lowers("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes.default", "aten.swapdims.default")
def _transpose(call: Any, x: jax.Array, dim0: int, dim1: int) -> jax.Array:
    return x if x.ndim == 0 else jnp.swapaxes(x, dim0, dim1)


@lowers("aten.t.default", "aten.t_copy.default", "aten.numpy_T.default")
def _t(call: Any, x: jax.Array) -> jax.Array:
    return jnp.transpose(x)


@lowers("aten.mT.default", "aten.matrix_H.default", "aten.mH.default", "aten.adjoint.default")
def _mt(call: Any, x: jax.Array) -> jax.Array:
    y = jnp.swapaxes(x, -1, -2)
    return y if call.node.op == "aten.mT.default" else jnp.conj(y)


@lowers("aten.movedim.intlist", "aten.movedim.int")
def _movedim(call: Any, x: jax.Array, source: Any, destination: Any) -> jax.Array:
    return jnp.moveaxis(x, source, destination)


@lowers("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def _unsqueeze(call: Any, x: jax.Array, dim: int) -> jax.Array:
    return jnp.expand_dims(x, dim)


@lowers(
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze_copy.default",
    "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
)
def _squeeze(call: Any, x: jax.Array, dim: int | Sequence[int] | None = None) -> jax.Array:
    if x.ndim == 0:
        return x
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(d % x.ndim for d in dims if x.shape[d] == 1))


@lowers("aten.select.int", "aten.select_copy.int")
def _select(call: Any, x: jax.Array, dim: int, index: Any) -> jax.Array:
    dim = dim % x.ndim
    if isinstance(index, int):
        return lax.index_in_dim(x, index, dim, keepdims=False)
    # a number that the program computes: x[t] with a tensor of no dimensions
    size = x.shape[dim]
    call.fault(
        (index < -size) | (index >= size), f"select(): index out of range for {size} at dimension {dim}"
    )
    return lax.dynamic_index_in_dim(x, jnp.where(index < 0, index + size, index), dim, keepdims=False)


def bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """ATen's slice bounds on a dimension of ``size``: negative ends wrap, everything is clamped."""
    first = 0 if start is None else start + size if start < 0 else start
    last = size if end is None else end + size if end < 0 else end
    first = min(max(first, 0), size)
    return first, min(max(last, first), size)


@lowers("aten.slice.Tensor", "aten.slice_copy.Tensor")
def _slice(
    call: Any, x: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    dim %= x.ndim
    first, last = bounds(x.shape[dim], start, end)
    return lax.slice_in_dim(x, first, last, step, dim)


@lowers("aten.narrow.default", "aten.narrow_copy.default")
def _narrow(call: Any, x: jax.Array, dim: int, start: int, length: int) -> jax.Array:
    dim %= x.ndim
    start += x.shape[dim] if start < 0 else 0
    return lax.slice_in_dim(x, start, start + length, 1, dim)


@lowers("aten.slice_scatter.default")
def _slice_scatter(
    call: Any,
    x: jax.Array,
    source: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    dim %= x.ndim
    first, last = bounds(x.shape[dim], start, end)
    place = (slice(None),) * dim + (slice(first, last, step),)
    return x.at[place].set(cast(source, x.dtype))


@lowers("aten.select_scatter.default")
def _select_scatter(call: Any, x: jax.Array, source: jax.Array, dim: int, index: int) -> jax.Array:
    dim %= x.ndim
    return x.at[(slice(None),) * dim + (index % x.shape[dim],)].set(cast(source, x.dtype))


def _diagonal_places(shape: Sequence[int], offset: int, dim1: int, dim2: int) -> tuple[Any, Any]:
    rows, columns = shape[dim1], shape[dim2]
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    steps = np.arange(count)
    return steps - min(offset, 0), steps + max(offset, 0)


@lowers("aten.diagonal.default", "aten.diagonal_copy.default", "aten.linalg_diagonal.default")
def _diagonal(
    call: Any, x: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1, **named: Any
) -> jax.Array:
    if call.node.op == "aten.linalg_diagonal.default":
        dim1, dim2 = named.get("dim1", -2), named.get("dim2", -1)
    return jnp.diagonal(x, offset, dim1, dim2)


@lowers("aten.diagonal_scatter.default")
def _diagonal_scatter(
    call: Any, x: jax.Array, source: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> jax.Array:
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    rows, columns = _diagonal_places(x.shape, offset, dim1, dim2)
    return jnp.moveaxis(moved.at[..., rows, columns].set(cast(source, x.dtype)), (-2, -1), (dim1, dim2))


@lowers("aten.diag_embed.default")
def _diag_embed(call: Any, x: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    size = x.shape[-1] + abs(offset)
    steps = np.arange(x.shape[-1])
    full = jnp.zeros((*x.shape[:-1], size, size), x.dtype)
    full = full.at[..., steps - min(offset, 0), steps + max(offset, 0)].set(x)
    return jnp.moveaxis(full, (-2, -1), (dim1, dim2))


@lowers("aten.diag.default")
def _diag(call: Any, x: jax.Array, diagonal: int = 0) -> jax.Array:
    return _diag_embed(call, x, diagonal) if x.ndim == 1 else jnp.diagonal(x, diagonal)


def _cut(x: jax.Array, places: Sequence[int], dim: int) -> tuple[jax.Array, ...]:
    edges = [0, *places, x.shape[dim]]
    return tuple(lax.slice_in_dim(x, a, b, 1, dim) for a, b in pairwise(edges))


@lowers("aten.split.Tensor", "aten.split_copy.Tensor", "aten.unsafe_split.Tensor")
def _split(call: Any, x: jax.Array, size: int, dim: int = 0) -> tuple[jax.Array, ...]:
    dim %= x.ndim
    return _cut(x, range(size, x.shape[dim], size), dim) if size else (x,)


@lowers(
    "aten.split_with_sizes.default",
    "aten.split_with_sizes_copy.default",
    "aten.unsafe_split_with_sizes.default",
    "aten.split.sizes",
)
def _split_with_sizes(call: Any, x: jax.Array, sizes: Sequence[int], dim: int = 0) -> tuple[jax.Array, ...]:
    return _cut(x, [int(n) for n in np.cumsum(sizes)[:-1]], dim % x.ndim)


@lowers("aten.chunk.default", "aten.unsafe_chunk.default")
def _chunk(call: Any, x: jax.Array, chunks: int, dim: int = 0) -> tuple[jax.Array, ...]:
    size = -(-x.shape[dim] // chunks)
    if size == 0:
        return (x,) * chunks
    return _split(call, x, size, dim)


@lowers("aten.tensor_split.sections", "aten.tensor_split.indices")
def _tensor_split(call: Any, x: jax.Array, how: int | Sequence[int], dim: int = 0) -> tuple[jax.Array, ...]:
    size = x.shape[dim]
    if isinstance(how, int):
        small, extra = divmod(size, how)
        how = [i * small + min(i, extra) for i in range(1, how)]
    pieces = []
    for start, end in zip([0, *how], [*how, size], strict=True):
        pieces.append(_slice(call, x, dim, start, end))
    return tuple(pieces)


@lowers("aten.unbind.int", "aten.unbind_copy.int")
def _unbind(call: Any, x: jax.Array, dim: int = 0) -> tuple[jax.Array, ...]:
    dim %= x.ndim
    # One split, and not a slice for each: its derivative is one concatenation.
    return (
        tuple(lax.squeeze(part, (dim,)) for part in lax.split(x, (1,) * x.shape[dim], dim))
        if x.shape[dim]
        else ()
    )


@lowers("aten.cat.default", "aten.concat.default", "aten.concatenate.default", aware=True)
def _cat(call: Any, tensors: Sequence[jax.Array | Last], dim: int = 0) -> jax.Array | Last:
    dtype, rank = out_dtype(call), len(call.out.shape)
    if any(isinstance(t, Last) for t in tensors) and all(t.ndim == rank for t in tensors):
        axis = (0, rank - 1, *range(1, rank - 1))[dim % rank]
        return Last(jnp.concatenate([cast(last(t).array, dtype) for t in tensors], axis))
    tensors = plainly(tuple(tensors))
    # torch skips legacy empty tensors of shape (0,) whatever the others' rank is.
    kept = [cast(t, dtype) for t in tensors if t.shape != (0,)] or [cast(tensors[0], dtype)]
    return kept[0] if len(kept) == 1 else jnp.concatenate(kept, dim)


@lowers("aten.stack.default")
def _stack(call: Any, tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    dtype = out_dtype(call)
    return jnp.stack([cast(t, dtype) for t in tensors], dim)


@lowers("aten.repeat.default")
def _repeat(call: Any, x: jax.Array, repeats: Sequence[int]) -> jax.Array:
    return _tiled(x, repeats)


@lowers("aten.tile.default")
def _tile(call: Any, x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return _tiled(x, dims)


def _tiled(x: jax.Array, repeats: Sequence[int]) -> jax.Array:
    """Every axis laid down ``repeats`` times, as a broadcast along a new axis before each."""
    repeats = (1,) * (x.ndim - len(repeats)) + tuple(repeats)
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    pairs = [(1, n) for n in shape]
    whole = spread(
        x.reshape([m for pair in pairs for m in pair]),
        [m for times, n in zip(repeats, shape, strict=True) for m in (times, n)],
    )
    return whole.reshape([times * n for times, n in zip(repeats, shape, strict=True)])


@lowers("aten.repeat_interleave.self_int")
def _repeat_interleave(
    call: Any, x: jax.Array, repeats: int, dim: int | None = None, output_size: int | None = None
) -> jax.Array:
    x, axis = (x.reshape(-1), 0) if dim is None or x.ndim == 0 else (x, dim % x.ndim)
    whole = spread(
        x[(slice(None),) * (axis + 1) + (None,)], (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    )
    return whole.reshape(*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :])


@lowers("aten.flip.default")
def _flip(call: Any, x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return lax.rev(x, tuple(d % x.ndim for d in dims)) if x.ndim else x


lowers("aten.fliplr.default")(lambda call, x: jnp.flip(x, 1))
lowers("aten.flipud.default")(lambda call, x: jnp.flip(x, 0))


@lowers("aten.rot90.default")
def _rot90(call: Any, x: jax.Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> jax.Array:
    return jnp.rot90(x, k, tuple(dims))


@lowers("aten.roll.default")
def _roll(call: Any, x: jax.Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> jax.Array:
    if not dims:
        return jnp.roll(x.reshape(-1), shifts[0] if not isinstance(shifts, int) else shifts).reshape(x.shape)
    return jnp.roll(x, tuple(shifts), tuple(dims))


@lowers("aten.tril.default")
def _tril(call: Any, x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.tril(x, diagonal)


@lowers("aten.triu.default")
def _triu(call: Any, x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.triu(x, diagonal)
