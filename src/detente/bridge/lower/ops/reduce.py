"""Reductions: sum, mean, prod, var, norms, max and min with indices, any, all, and the scans cumsum … cummax.

Half precision accumulates in float32 and is rounded once. ``amax`` shares the gradient among ties and ``max(dim)``
gives it to the returned index, as torch has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from detente.bridge.lower.dtypes import (
    NotForComplex,
    cast,
    compute,
    highest,
    is_bool,
    is_complex,
    is_float,
    is_integer,
    lowest,
    out_dtype,
    wide,
)
from detente.bridge.lower.gradient import with_gradient
from detente.bridge.lower.ops.arithmetic import log_add
from detente.bridge.lower.ops.pointwise import absolute
from detente.bridge.lower.table import lowers

Dims = int | Sequence[int] | None


def axes(x: jax.Array, dim: Dims) -> tuple[int, ...]:
    """Normalised axes of a reduction; None and an empty list mean all of them."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % x.ndim for d in dims) if x.ndim else ()


@lowers("aten.sum.default", "aten.sum.dim_IntList")
def _sum(call: Any, x: jax.Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> jax.Array:
    kind = out_dtype(call)
    return cast(jnp.sum(cast(x, wide(kind)), axes(x, dim), keepdims=keepdim), kind)


@lowers("aten.nansum.default")
def _nansum(call: Any, x: jax.Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> jax.Array:
    kind = out_dtype(call)
    x = jnp.where(jnp.isnan(x), 0, x) if is_float(x.dtype) else x
    return cast(jnp.sum(cast(x, wide(kind)), axes(x, dim), keepdims=keepdim), kind)


@lowers("aten.mean.default", "aten.mean.dim")
def _mean(call: Any, x: jax.Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> jax.Array:
    kind = out_dtype(call)
    over = axes(x, dim)
    count = int(np.prod([x.shape[d] for d in over], dtype=np.int64))
    total = jnp.sum(cast(x, wide(kind)), over, keepdims=keepdim)
    return cast(total / count if count else jnp.full(total.shape, jnp.nan, total.dtype), kind)


@lowers("aten.nanmean.default")
def _nanmean(
    call: Any, x: jax.Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> jax.Array:
    kind = out_dtype(call)
    valid = ~jnp.isnan(x)
    x = cast(jnp.where(valid, x, 0), wide(kind))
    over = axes(x, dim)
    return cast(
        jnp.sum(x, over, keepdims=keepdim) / jnp.sum(valid, over, keepdims=keepdim).astype(x.dtype), kind
    )


@lowers("aten.prod.default", "aten.prod.dim_int")
def _prod(
    call: Any, x: jax.Array, dim: int | None = None, keepdim: bool = False, dtype: Any = None
) -> jax.Array:
    kind = out_dtype(call)
    x = _nan_gradient(cast(x, wide(kind)), lambda x: ~jnp.isfinite(x) & ~jnp.any(x == 0))
    return cast(jnp.prod(x, axes(x, dim), keepdims=keepdim), kind)


def _nan_gradient(x: jax.Array, where: Any) -> jax.Array:
    """``x`` with NaN for the gradient of the elements ``where(x)``: torch divides a product by its factors, and of a
    factor that is NaN or infinite the others' product is not its gradient."""
    if is_integer(x.dtype) or is_bool(x.dtype):
        return x
    still = lax.stop_gradient(x)
    return with_gradient(still, x * jnp.where(where(still), jnp.nan, 1).astype(x.dtype))


def moments(x: jax.Array, dim: Dims, correction: float | None, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    """Variance (two passes, as ATen's Welford within rounding) and mean of a float or complex array."""
    over = axes(x, dim)
    count = int(np.prod([x.shape[d] for d in over], dtype=np.int64))
    mean = jnp.sum(x, over, keepdims=True) / max(count, 1)
    if count == 0:
        mean = jnp.full(mean.shape, jnp.nan, mean.dtype)
    away = x - mean
    squares = jnp.real(away * jnp.conj(away)) if is_complex(x.dtype) else away * away
    freedom = count - (1 if correction is None else correction)
    total = jnp.sum(squares, over, keepdims=keepdim)
    variance = total / freedom if freedom > 0 else jnp.where(total == 0, jnp.nan, total / 0.0)
    return variance, mean if keepdim else jnp.squeeze(mean, over)


def _correction(unbiased: Any, correction: Any) -> Any:
    return correction if unbiased is None else int(bool(unbiased))


def _spread(root: bool, with_mean: bool) -> Any:
    def lower(call: Any, x: jax.Array, *args: Any, **named: Any) -> Any:
        dim, unbiased, keepdim = None, None, named.get("keepdim", False)
        overload = call.node.op.rsplit(".", 1)[1]
        if overload == "default":
            unbiased = args[0] if args else named.get("unbiased", True)
        elif overload == "dim":
            dim = args[0] if args else named.get("dim")
            unbiased = args[1] if len(args) > 1 else named.get("unbiased", True)
            keepdim = args[2] if len(args) > 2 else keepdim
        else:
            dim = args[0] if args else named.get("dim")
        kind = out_dtype(call, 0 if with_mean else None)
        compute = wide(x.dtype)
        variance, mean = moments(
            cast(x, compute), dim, _correction(unbiased, named.get("correction")), keepdim
        )
        if root:
            # The gradient of sqrt at 0 is infinite and torch masks it to zero.
            zero = variance == 0
            variance = jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, variance)))
        return (cast(variance, kind), cast(mean, out_dtype(call, 1))) if with_mean else cast(variance, kind)

    return lower


for _name, _root, _both in (
    ("var", False, False),
    ("std", True, False),
    ("var_mean", False, True),
    ("std_mean", True, True),
):
    lowers(*(f"aten.{_name}.{o}" for o in ("default", "dim", "correction")))(_spread(_root, _both))


def shared(
    x: jax.Array,
    value: jax.Array,
    over: tuple[int, ...],
    keepdim: bool = False,
    evenly: bool = True,
    among: Any = True,
) -> jax.Array:
    """``value`` (dimensions kept, without a gradient), an element of each reduction, its gradient shared among all
    (of ``among``) that equal it. Where it is NaN none does: then the NaNs share it (``evenly``), or every element has
    NaN."""
    still, compute = lax.stop_gradient(x), wide(x.dtype)
    absent = jnp.isnan(value)
    equal = among & ((still == value) | (absent & jnp.isnan(still) & evenly))
    count = jnp.sum(equal, over, keepdims=True, dtype=compute)
    share = jnp.where(absent & (not evenly), jnp.nan, equal / count)
    taken = jnp.sum(cast(x, compute) * share, over, keepdims=keepdim)
    return with_gradient(value if keepdim else value.reshape(taken.shape), cast(taken, x.dtype))


def _extreme(find: Any, x: jax.Array, over: tuple[int, ...], keepdim: bool, evenly: bool) -> jax.Array:
    if not is_float(x.dtype):
        return find(x, over, keepdims=keepdim)
    return shared(x, find(lax.stop_gradient(x), over, keepdims=True), over, keepdim, evenly)


@lowers("aten.amax.default")
def _amax(call: Any, x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    return _extreme(jnp.max, x, axes(x, dim), keepdim, False)


@lowers("aten.amin.default")
def _amin(call: Any, x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    return _extreme(jnp.min, x, axes(x, dim), keepdim, False)


@lowers("aten.aminmax.default")
def _aminmax(
    call: Any, x: jax.Array, *, dim: int | None = None, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    over = axes(x, dim)
    return _extreme(jnp.min, x, over, keepdim, False), _extreme(jnp.max, x, over, keepdim, False)


lowers("aten.max.default")(lambda call, x: _extreme(jnp.max, x, axes(x, None), False, True))
lowers("aten.min.default")(lambda call, x: _extreme(jnp.min, x, axes(x, None), False, True))


def along(x: jax.Array, index: jax.Array, dim: int, keepdim: bool) -> jax.Array:
    """The elements of ``x`` at ``index`` (kept dimension) along ``dim``; the gradient goes to them alone."""
    taken = jnp.take_along_axis(x, index, dim, mode="clip")
    return taken if keepdim else jnp.squeeze(taken, dim)


def _extremum(find: Any) -> Any:
    def lower(call: Any, x: jax.Array, dim: int, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
        kind = out_dtype(call, 1)
        if x.ndim == 0:
            return x, jnp.zeros((), kind)
        dim %= x.ndim
        # argmax and argmin give the first NaN when there is one, as torch does.
        index = find(lax.stop_gradient(x), dim, keepdims=True)
        value = along(x, index, dim, keepdim)
        return value, cast(index if keepdim else jnp.squeeze(index, dim), kind)

    return lower


lowers("aten.max.dim")(_extremum(jnp.argmax))
lowers("aten.min.dim")(_extremum(jnp.argmin))


def _arg(find: Any) -> Any:
    def lower(call: Any, x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        if x.ndim == 0:
            return jnp.zeros((), out_dtype(call))
        index = find(x, dim, keepdims=keepdim) if dim is not None else find(x.reshape(-1), 0)
        return cast(index.reshape(call.out.shape) if dim is None else index, out_dtype(call))

    return lower


lowers("aten.argmax.default")(_arg(jnp.argmax))
lowers("aten.argmin.default")(_arg(jnp.argmin))


def _boolean(function: Any) -> Any:
    def lower(call: Any, x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        # uint8 keeps its dtype in torch's any and all.
        return cast(function(x != 0, axes(x, dim), keepdims=keepdim), out_dtype(call))

    return lower


for _name, _function in (("any", jnp.any), ("all", jnp.all)):
    lowers(f"aten.{_name}.default", f"aten.{_name}.dim", f"aten.{_name}.dims")(_boolean(_function))


@lowers("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def _count_nonzero(call: Any, x: jax.Array, dim: Dims = None) -> jax.Array:
    return jnp.sum(x != 0, axes(x, dim), dtype=out_dtype(call))


def vector_norm(x: jax.Array, order: float, over: tuple[int, ...], keepdim: bool) -> jax.Array:
    """The ``order``-norm over axes, with torch's gradient at zero: 0 and not NaN."""
    size = absolute(x)
    if order == 0:
        return jnp.sum((x != 0).astype(size.dtype), over, keepdims=keepdim)
    if order == 1:
        return jnp.sum(size, over, keepdims=keepdim)
    if order == float("inf"):
        return jnp.max(size, over, keepdims=keepdim, initial=0 if size.size == 0 else None)
    if order == float("-inf"):
        return jnp.min(size, over, keepdims=keepdim)
    if order == 2:
        total = jnp.sum(jnp.real(x * jnp.conj(x)) if is_complex(x.dtype) else x * x, over, keepdims=keepdim)
        zero = total == 0
        return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, total)))
    # Zeros are kept out of the powers: 0 ** (order - 1) is infinite or NaN in the derivative.
    zero = size == 0
    powers = jnp.where(zero, 0 if order > 0 else jnp.inf, jnp.where(zero, 1, size) ** order)
    total = jnp.sum(powers, over, keepdims=keepdim)
    dead = (total == 0) | jnp.isinf(total)
    ends = lax.stop_gradient(total) ** (1.0 / order)
    return jnp.where(dead, ends, jnp.where(dead, 1, total) ** (1.0 / order))


@lowers("aten.linalg_vector_norm.default")
def linalg_vector_norm(
    call: Any, x: jax.Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> jax.Array:
    kind = out_dtype(call)
    compute = wide(x.dtype) if dtype is None or is_complex(x.dtype) else wide(kind)
    return cast(vector_norm(cast(x, compute), float(ord), axes(x, dim), keepdim), kind)


@lowers(
    "aten.norm.Scalar",
    "aten.norm.ScalarOpt_dim",
    "aten.norm.ScalarOpt_dtype",
    "aten.norm.ScalarOpt_dim_dtype",
)
def _norm(
    call: Any, x: jax.Array, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> jax.Array:
    kind = out_dtype(call)
    order = 2.0 if p is None else float(p)
    compute = wide(x.dtype) if is_complex(x.dtype) else wide(kind)
    return cast(vector_norm(cast(x, compute), order, axes(x, dim), keepdim), kind)


@lowers("aten.cumsum.default")
def _cumsum(call: Any, x: jax.Array, dim: int, dtype: Any = None) -> jax.Array:
    kind = out_dtype(call)
    if x.ndim == 0:
        return cast(x, kind)
    return cast(lax.cumsum(cast(x, wide(kind)), dim % x.ndim), kind)


@lowers("aten.cumprod.default")
def _cumprod(call: Any, x: jax.Array, dim: int, dtype: Any = None) -> jax.Array:
    kind = out_dtype(call)
    if x.ndim == 0:
        return cast(x, kind)
    # associative_scan and not lax.cumprod: the derivative of the latter divides by the factors, so a zero is NaN.
    x = _nan_gradient(cast(x, wide(kind)), lambda x: ~jnp.isfinite(x))
    return cast(lax.associative_scan(jnp.multiply, x, axis=dim % x.ndim), kind)


@lowers("aten.logcumsumexp.default")
def _logcumsumexp(call: Any, x: jax.Array, dim: int) -> jax.Array:
    kind = out_dtype(call)
    if is_complex(kind):
        raise NotForComplex("logcumsumexp")  # the branch of a logarithm
    if x.ndim == 0:
        return x
    return cast(lax.associative_scan(_log_add, cast(x, wide(kind)), axis=dim % x.ndim), kind)


def _log_add(a: jax.Array, b: jax.Array) -> jax.Array:
    return log_add(a, b)


def _cumulative(better: Any) -> Any:
    def combine(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> Any:
        take = better(right[0], left[0])
        return jnp.where(take, right[0], left[0]), jnp.where(take, right[1], left[1])

    def lower(call: Any, x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        kind = out_dtype(call, 1)
        if x.ndim == 0:
            return x, jnp.zeros((), kind)
        dim %= x.ndim
        places = lax.broadcasted_iota(jnp.int32, x.shape, dim)
        _, index = lax.associative_scan(combine, (lax.stop_gradient(x), places), axis=dim)
        return along(x, index, dim, True), cast(index, kind)

    return lower


def _nan(x: jax.Array) -> jax.Array:
    return jnp.isnan(x) if is_float(x.dtype) else jnp.zeros(x.shape, bool)


# Ties go to the later element and NaN is greater (for max) and smaller (for min) than everything, as in ATen.
lowers("aten.cummax.default")(_cumulative(lambda new, old: _nan(new) | (~_nan(old) & (new >= old))))
lowers("aten.cummin.default")(_cumulative(lambda new, old: _nan(new) | (~_nan(old) & (new <= old))))


@lowers("aten.diff.default")
def _diff(
    call: Any,
    x: jax.Array,
    n: int = 1,
    dim: int = -1,
    prepend: jax.Array | None = None,
    append: jax.Array | None = None,
) -> jax.Array:
    if n == 0:  # ATen looks at neither prepend nor append
        return x
    parts = [cast(p, out_dtype(call)) for p in (prepend, x, append) if p is not None]
    x = jnp.concatenate(parts, dim) if len(parts) > 1 else parts[0]
    dim %= x.ndim
    for _ in range(min(n, x.shape[dim])):
        after, before = (lax.slice_in_dim(x, s, x.shape[dim] + s - 1, 1, dim) for s in (1, 0))
        x = jnp.logical_xor(after, before) if is_bool(x.dtype) else after - before
    return x


@lowers("aten.dist.default")
def _dist(call: Any, a: jax.Array, b: jax.Array, p: float = 2) -> jax.Array:
    kind = out_dtype(call)
    away = cast(a, compute(a, kind)) - cast(b, compute(b, kind))
    return cast(vector_norm(away, float(p), tuple(range(away.ndim)), False), kind)


def identity_of(reduce: str, dtype: Any) -> Any:
    """The value that leaves a reduction of ``dtype`` unchanged."""
    return {"sum": 0, "mean": 0, "prod": 1, "max": lowest(dtype), "min": highest(dtype)}[reduce]


@lowers("aten._is_all_true.default")
def _is_all_true(call: Any, x: jax.Array) -> jax.Array:
    return jnp.all(x)


@lowers("aten._is_any_true.default")
def _is_any_true(call: Any, x: jax.Array) -> jax.Array:
    return jnp.any(x)


@lowers("aten.trace.default")
def _trace(call: Any, x: jax.Array) -> jax.Array:
    return jnp.trace(x, dtype=out_dtype(call) if is_integer(x.dtype) else None)
