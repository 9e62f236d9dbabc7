"""Writing along one dimension: scatter, scatter_add, scatter_reduce, and what several values at one place come to."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.bounds import checked
from detente.bridge.lower.dtypes import cast, highest, is_float, lowest, spread
from detente.bridge.lower.table import lowers


def _scatter_places(
    call: Any, x: jax.Array, dim: int, index: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """``x`` with at least one dimension, and the full coordinates of every element of ``index``."""
    if x.ndim == 0:
        x = x.reshape(1)
    if index.ndim == 0:
        index = index.reshape(1)
    dim %= x.ndim
    message = f"RuntimeError: index out of bounds for dimension {dim} with size {x.shape[dim]}"
    index = checked(call, index, x.shape[dim], message, wrap=False)
    places = [
        jnp.arange(n).reshape(tuple(n if d == e else 1 for e in range(index.ndim)))
        for d, n in enumerate(index.shape)
    ]
    places[dim] = index
    return x, tuple(jnp.broadcast_arrays(*places))


def _source(source: Any, places: tuple[jax.Array, ...], dtype: Any) -> jax.Array:
    """The part of ``source`` that ``index`` covers, or a number broadcast to it."""
    shape = places[0].shape
    if jnp.ndim(source) == 0:
        return spread(cast(source, dtype), shape)
    return cast(source, dtype)[tuple(slice(0, n) for n in shape)]


def written(x: jax.Array, places: tuple[Any, ...], values: jax.Array) -> jax.Array:
    """``x`` with ``values`` at ``places`` (arrays and slices). Of several at one place the last one stays, and the
    gradient of each is that of its place, as in torch; JAX's own gives it to the one that stayed alone."""
    pattern = tuple(place if isinstance(place, slice) else None for place in places)
    arrays = tuple(place for place in places if not isinstance(place, slice))
    return _written(pattern, x, values, arrays)


def _filled(pattern: tuple[Any, ...], arrays: tuple[jax.Array, ...]) -> tuple[Any, ...]:
    left = iter(arrays)
    return tuple(next(left) if place is None else place for place in pattern)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _written(
    pattern: tuple[Any, ...], x: jax.Array, values: jax.Array, arrays: tuple[jax.Array, ...]
) -> jax.Array:
    return x.at[_filled(pattern, arrays)].set(values)


@_written.defjvp
def _written_jvp(pattern: tuple[Any, ...], primals: Any, tangents: Any) -> Any:
    x, values, arrays = primals
    places = _filled(pattern, arrays)
    touched = jnp.zeros(x.shape, bool).at[places].set(True)
    kept = jnp.where(touched, jnp.zeros((), x.dtype), tangents[0])
    return _written(pattern, x, values, arrays), kept.at[places].add(tangents[1])


@lowers("aten.scatter.src", "aten.scatter.value")
def _scatter(
    call: Any, x: jax.Array, dim: int, index: jax.Array, source: Any = None, value: Any = None
) -> jax.Array:
    full, places = _scatter_places(call, x, dim, index)
    source = value if source is None else source
    return written(full, places, _source(source, places, x.dtype)).reshape(x.shape)


@lowers("aten.scatter_add.default")
def _scatter_add(call: Any, x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    full, places = _scatter_places(call, x, dim, index)
    return full.at[places].add(_source(source, places, x.dtype)).reshape(x.shape)


@lowers("aten.scatter.reduce", "aten.scatter.value_reduce")
def _scatter_legacy(
    call: Any, x: jax.Array, dim: int, index: jax.Array, source: Any, *, reduce: str
) -> jax.Array:
    full, places = _scatter_places(call, x, dim, index)
    source = _source(source, places, x.dtype)
    at = full.at[places]
    return (at.add(source) if reduce == "add" else at.multiply(source)).reshape(x.shape)


def reduce_at(
    x: jax.Array, places: tuple[Any, ...], source: jax.Array, reduce: str, include_self: bool
) -> jax.Array:
    """``scatter_reduce``: sum, prod, mean, amax or amin of what lands on each element of ``x``."""
    at = x.at[places]
    if not include_self:
        identity = {"sum": 0, "mean": 0, "prod": 1}.get(reduce)
        if identity is None:
            touched = jnp.zeros(x.shape, bool).at[places].set(True)
            first = _extreme(x.dtype, reduce)
            x = jnp.where(touched, jnp.asarray(first, x.dtype), x)
        else:
            x = at.set(jnp.full(source.shape, identity, x.dtype))
        at = x.at[places]
    if reduce == "sum":
        return at.add(source)
    if reduce == "prod":
        return _multiply_at(x, source, places) if is_float(x.dtype) else at.multiply(source)
    if reduce == "amax":
        return at.max(source)
    if reduce == "amin":
        return at.min(source)
    counts = jnp.full(x.shape, 1 if include_self else 0, x.dtype)
    counts = jnp.maximum(counts.at[places].add(jnp.ones(source.shape, x.dtype)), 1)
    total = at.add(source)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.floor_divide(total, counts)
    return total / lax.stop_gradient(counts)


def _multiply_at(x: jax.Array, source: jax.Array, places: tuple[Any, ...]) -> jax.Array:
    """Products of what lands on each element of ``x``. JAX differentiates a scatter-multiply only for unique
    places; here every factor's derivative is the product of the others, zeros included."""
    fixed_x, fixed_source = lax.stop_gradient(x), lax.stop_gradient(source)
    zeros = (fixed_x == 0).astype(x.dtype).at[places].add((fixed_source == 0).astype(x.dtype))
    rest = (
        jnp.where(fixed_x == 0, 1, fixed_x).at[places].multiply(jnp.where(fixed_source == 0, 1, fixed_source))
    )

    def others(factor: jax.Array, zeros: jax.Array, rest: jax.Array) -> jax.Array:
        one = jnp.where(zeros == 1, rest, 0)
        return jnp.where(factor == 0, one, jnp.where(zeros == 0, rest / jnp.where(factor == 0, 1, factor), 0))

    slope = (
        (x * others(fixed_x, zeros, rest))
        .at[places]
        .add(source * others(fixed_source, zeros[places], rest[places]))
    )
    # The value of the product, with the gradient of `slope`.
    return jnp.where(zeros == 0, rest, 0) + (slope - lax.stop_gradient(slope))


def _extreme(dtype: Any, reduce: str) -> Any:
    return lowest(dtype) if reduce == "amax" else highest(dtype)


@lowers("aten.scatter_reduce.two")
def _scatter_reduce(
    call: Any,
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    include_self: bool = True,
) -> jax.Array:
    full, places = _scatter_places(call, x, dim, index)
    source = _source(source, places, x.dtype)
    return reduce_at(full, places, source, reduce, include_self).reshape(x.shape)
