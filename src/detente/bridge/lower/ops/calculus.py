"""Integrals and differences over a dimension: trapezoid, cumulative_trapezoid, gradient, cov, corrcoef."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.dtypes import cast, is_complex, out_dtype, wide
from detente.bridge.lower.table import lowers


def _panels(y: jax.Array, x: Any, dx: Any, dim: int) -> jax.Array:
    """Twice the area of each panel between neighbours along ``dim``."""
    size = y.shape[dim]
    after, before = lax.slice_in_dim(y, 1, size, 1, dim), lax.slice_in_dim(y, 0, size - 1, 1, dim)
    if x is None:
        return (after + before) * jnp.asarray(dx, y.dtype)
    if x.ndim == 1 and y.ndim > 1:
        x = x.reshape(tuple(-1 if d == dim else 1 for d in range(y.ndim)))
    elif x.ndim < y.ndim:
        x = x.reshape((1,) * (y.ndim - x.ndim) + x.shape)
    axis = dim if x.ndim == y.ndim else dim - y.ndim + x.ndim
    return (after + before) * jnp.diff(cast(x, y.dtype), axis=axis)


def _trapezoid(call: Any, y: jax.Array, x: Any, dx: Any, dim: int, cumulative: bool) -> jax.Array:
    kind = out_dtype(call)
    y = cast(y, wide(kind))  # half precision is rounded once, at the end
    dim %= y.ndim
    if y.shape[dim] == 0:
        return jnp.zeros(call.out.shape, kind)
    panels = _panels(y, x, dx, dim)
    total = jnp.cumsum(panels, dim) if cumulative else jnp.sum(panels, dim)
    return cast(total / 2, kind)


for _name, _cumulative in (("trapezoid", False), ("trapz", False), ("cumulative_trapezoid", True)):
    lowers(f"aten.{_name}.x")(
        lambda call, y, x, *, dim=-1, _c=_cumulative: _trapezoid(call, y, x, 1, dim, _c)
    )
    lowers(f"aten.{_name}.dx")(
        lambda call, y, *, dx=1, dim=-1, _c=_cumulative: _trapezoid(call, y, None, dx, dim, _c)
    )


def _slope(y: jax.Array, spacing: Any, dim: int, edge_order: int) -> jax.Array:
    """Central differences inside, one-sided of the given order at the ends; ``spacing`` a number or coordinates."""
    size = y.shape[dim]
    at = lambda i: lax.slice_in_dim(y, i % size, i % size + 1, 1, dim)  # noqa: E731
    before, here, after = (lax.slice_in_dim(y, s, size - 2 + s, 1, dim) for s in range(3))
    shape = tuple(-1 if d == dim else 1 for d in range(y.ndim))
    if jnp.ndim(spacing) == 0:
        steps = jnp.full((size - 1,), spacing, jnp.real(y).dtype)
        middle = (after - before) / (2 * cast(spacing, jnp.real(y).dtype))
    else:
        steps = jnp.diff(cast(spacing, jnp.real(y).dtype))
        a, b = steps[:-1].reshape(shape), steps[1:].reshape(shape)
        middle = -b / (a * (a + b)) * before + (b - a) / (a * b) * here + a / (b * (a + b)) * after
    if edge_order == 1:
        first, last = (at(1) - at(0)) / steps[0], (at(-1) - at(-2)) / steps[-1]
    else:
        a, b = steps[0], steps[1]
        first = -(2 * a + b) / (a * (a + b)) * at(0) + (a + b) / (a * b) * at(1) - a / (b * (a + b)) * at(2)
        a, b = steps[-2], steps[-1]
        last = b / (a * (a + b)) * at(-3) - (a + b) / (a * b) * at(-2) + (2 * b + a) / (b * (a + b)) * at(-1)
    return jnp.concatenate([first, middle, last], dim)


@lowers(
    "aten.gradient.scalarint",
    "aten.gradient.scalararray",
    "aten.gradient.array",
    "aten.gradient.scalarrayint",
    "aten.gradient.scalarrayarray",
    "aten.gradient.tensorarrayint",
    "aten.gradient.tensorarray",
)
def _gradient(
    call: Any, y: jax.Array, spacing: Any = None, dim: Any = None, edge_order: int = 1, **named: Any
) -> tuple[jax.Array, ...]:
    dims = range(y.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = [d % y.ndim for d in dims]
    if call.node.op == "aten.gradient.array":
        # (self, dim[], edge_order): the second argument is the dimensions.
        dims, spacing = [d % y.ndim for d in (spacing if spacing is not None else range(y.ndim))], None
    if not isinstance(spacing, tuple | list):
        spacing = [1.0 if spacing is None else spacing] * len(dims)
    return tuple(_slope(y, s, d, edge_order) for d, s in zip(dims, spacing, strict=True))


@lowers("aten.cov.default")
def _cov(
    call: Any,
    x: jax.Array,
    correction: int = 1,
    fweights: jax.Array | None = None,
    aweights: jax.Array | None = None,
) -> jax.Array:
    kind = out_dtype(call)
    result = jnp.cov(cast(x, kind), ddof=correction, fweights=fweights, aweights=aweights)
    return cast(result, kind).reshape(call.out.shape)


@lowers("aten.corrcoef.default")
def _corrcoef(call: Any, x: jax.Array) -> jax.Array:
    kind = out_dtype(call)
    covariance = jnp.atleast_2d(jnp.cov(cast(x, kind)))
    spread = jnp.sqrt(jnp.real(jnp.diagonal(covariance)))
    result = covariance / spread[:, None] / spread[None, :]
    if is_complex(kind):
        result = lax.complex(jnp.clip(jnp.real(result), -1, 1), jnp.clip(jnp.imag(result), -1, 1))
    else:
        result = jnp.clip(result, -1, 1)
    return cast(result, kind).reshape(call.out.shape)
