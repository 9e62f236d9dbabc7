"""Joining and cutting by axis name: hstack, dstack, vsplit, atleast_3d, cartesian_prod, pad_sequence, _chunk_cat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.lower.dtypes import cast, out_dtype, promote
from detente.bridge.lower.ops.shape import _diag_embed, _tensor_split
from detente.bridge.lower.table import lowers


def _joined(function: Any) -> Any:
    def lower(call: Any, tensors: Sequence[jax.Array]) -> jax.Array:
        return function([cast(t, out_dtype(call)) for t in tensors])

    return lower


lowers("aten.hstack.default")(_joined(jnp.hstack))
lowers("aten.vstack.default", "aten.row_stack.default")(_joined(jnp.vstack))
lowers("aten.dstack.default")(_joined(jnp.dstack))
lowers("aten.column_stack.default")(_joined(jnp.column_stack))


@lowers("aten.block_diag.default")
def _block_diag(call: Any, tensors: Sequence[jax.Array]) -> jax.Array:
    out = jnp.zeros(call.out.shape, promote(*tensors))
    row = column = 0
    for t in tensors:
        block = jnp.atleast_2d(t)
        height, width = block.shape
        out = out.at[row : row + height, column : column + width].set(cast(block, out.dtype))
        row, column = row + height, column + width
    return out


def _split_along(axis: int) -> Any:
    def lower(call: Any, x: jax.Array, how: int | Sequence[int]) -> tuple[jax.Array, ...]:
        return _tensor_split(call, x, how, 0 if axis == 1 and x.ndim == 1 else axis)

    return lower


for _axis, _name in enumerate(("vsplit", "hsplit", "dsplit")):
    lowers(f"aten.{_name}.int", f"aten.{_name}.array")(_split_along(_axis))


def _at_least_3d(x: jax.Array) -> jax.Array:
    if x.ndim == 0:
        return x.reshape(1, 1, 1)
    if x.ndim == 1:
        return x[None, :, None]
    return x[:, :, None] if x.ndim == 2 else x


for _name, _function in (("1d", jnp.atleast_1d), ("2d", jnp.atleast_2d), ("3d", _at_least_3d)):
    lowers(f"aten.atleast_{_name}.default")(lambda call, x, _f=_function: _f(x))
    lowers(f"aten.atleast_{_name}.Sequence")(lambda call, xs, _f=_function: tuple(_f(x) for x in xs))


@lowers("aten.diagflat.default")
def _diagflat(call: Any, x: jax.Array, offset: int = 0) -> jax.Array:
    return _diag_embed(call, x.reshape(-1), offset)


lowers("aten.ravel.default")(lambda call, x: x.reshape(-1))


@lowers("aten.cartesian_prod.default")
def _cartesian_prod(call: Any, tensors: Sequence[jax.Array]) -> jax.Array:
    if len(tensors) == 1:
        return tensors[0]
    mesh = jnp.meshgrid(*tensors, indexing="ij")
    return jnp.stack([m.reshape(-1) for m in mesh], -1)


@lowers("aten.sum_to_size.default")
def _sum_to_size(call: Any, x: jax.Array, size: Sequence[int]) -> jax.Array:
    lead = x.ndim - len(size)
    over = (*range(lead), *(lead + i for i, n in enumerate(size) if n == 1 and x.shape[lead + i] != 1))
    return jnp.sum(x, over, keepdims=True).reshape(size) if over else x


@lowers("aten.pad_sequence.default")
def _pad_sequence(
    call: Any,
    tensors: Sequence[jax.Array],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> jax.Array:
    longest = max(t.shape[0] for t in tensors)
    rows = []
    for t in tensors:
        extra = longest - t.shape[0]
        pads = [(0, extra) if padding_side == "right" else (extra, 0)] + [(0, 0)] * (t.ndim - 1)
        rows.append(jnp.pad(t, pads, constant_values=padding_value))
    return jnp.stack(rows, 0 if batch_first else 1)


@lowers("aten._chunk_cat.default")
def _chunk_cat(call: Any, tensors: Sequence[jax.Array], dim: int, num_chunks: int) -> jax.Array:
    """Each tensor padded to a multiple of ``num_chunks`` along ``dim``, cut, flattened, joined at ``dim + 1``."""
    rows = []
    dim %= tensors[0].ndim
    for t in tensors:
        x = cast(t, out_dtype(call))
        size = -(-x.shape[dim] // num_chunks)
        pads = [(0, 0)] * x.ndim
        pads[dim] = (0, size * num_chunks - x.shape[dim])
        rows.append(jnp.pad(x, pads).reshape(*x.shape[:dim], num_chunks, -1))
    return jnp.concatenate(rows, dim + 1)
