"""Choosing and mixing elementwise: where, clamp, masked_fill, lerp, addcmul, addcdiv, isin, isclose."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.lower.dtypes import cast, is_float, out_dtype, promote, wide
from detente.bridge.lower.gradient import with_gradient
from detente.bridge.lower.table import lowers


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def _where(call: Any, condition: jax.Array, a: Any, b: Any) -> jax.Array:
    dtype = out_dtype(call)
    # in float32 for 16-bit floats: where one side is broadcast, its gradient is a sum
    return cast(jnp.where(condition != 0, cast(a, wide(dtype)), cast(b, wide(dtype))), dtype)


@lowers(
    "aten.clamp.default",
    "aten.clamp.Tensor",
    "aten.clip.default",
    "aten.clip.Tensor",
)
def _clamp(call: Any, x: jax.Array, min: Any = None, max: Any = None) -> jax.Array:
    # `where` and not jnp.clip: torch passes the gradient where x equals a bound, and NaN passes through.
    dtype = out_dtype(call)
    x = cast(x, dtype)
    lower = None if min is None else cast(min, dtype)
    upper = None if max is None else cast(max, dtype)
    if lower is not None and upper is not None:
        lower_ = jnp.where(jnp.isnan(upper), upper, lower) if is_float(dtype) else lower
        above = x > upper
        # With min > max torch returns max everywhere.
        below = x < lower_
        # Where the bounds are equal, torch gives neither of them a gradient from below.
        bound = jnp.where(lower_ < upper, lower_, jax.lax.stop_gradient(lower_))
        result = jnp.where(below, bound, x)
        result = jnp.where(above | (below & (lower_ > upper)), upper, result)
    elif lower is not None:
        result = jnp.where(x < lower, lower, x)
    elif upper is not None:
        result = jnp.where(x > upper, upper, x)
    else:
        return x
    if is_float(dtype):
        # NaN is within no bounds: it passes and takes no gradient.
        result = jnp.where(jnp.isnan(x), jax.lax.stop_gradient(x), result)
        for bound in (lower, upper):
            if bound is not None:
                result = jnp.where(jnp.isnan(bound), bound, result)
    return result


lowers("aten.clamp_min.default", "aten.clamp_min.Tensor")(lambda call, x, min: _clamp(call, x, min, None))
lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")(lambda call, x, max: _clamp(call, x, None, max))


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(call: Any, x: jax.Array, mask: jax.Array, value: Any) -> jax.Array:
    return jnp.where(mask, cast(value, x.dtype), x)


@lowers("aten.lerp.Scalar", "aten.lerp.Tensor")
def _lerp(call: Any, start: jax.Array, end: jax.Array, weight: Any) -> jax.Array:
    # Two formulas, as in ATen, so that the result is exact at both ends.
    dtype = out_dtype(call)
    start, end, weight = (cast(x, wide(dtype)) for x in (start, end, weight))
    low = start + weight * (end - start)
    high = end - (end - start) * (1 - weight)
    return cast(jnp.where(jnp.abs(weight) < 0.5, low, high), dtype)


@lowers("aten.addcmul.default")
def _addcmul(call: Any, x: jax.Array, a: jax.Array, b: jax.Array, value: Any = 1) -> jax.Array:
    dtype = out_dtype(call)
    x, a, b, value = (cast(v, wide(dtype)) for v in (x, a, b, value))
    return cast(x + value * a * b, dtype)


@lowers("aten.addcdiv.default")
def _addcdiv(call: Any, x: jax.Array, a: jax.Array, b: jax.Array, value: Any = 1) -> jax.Array:
    dtype = out_dtype(call)
    x, a, b, value = (cast(v, wide(dtype)) for v in (x, a, b, value))
    return cast(x + value * (a / b), dtype)


@lowers("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Scalar", "aten.isin.Scalar_Tensor")
def _isin(
    call: Any, elements: Any, tests: Any, assume_unique: bool = False, invert: bool = False
) -> jax.Array:
    dtype = promote(elements, tests)
    found = jnp.isin(cast(elements, dtype), cast(tests, dtype))
    return jnp.logical_not(found) if invert else found


@lowers("aten.isclose.default")
def _isclose(
    call: Any, a: jax.Array, b: jax.Array, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> jax.Array:
    close = jnp.asarray(a == b)
    if is_float(a.dtype):
        wide_type = wide(a.dtype)
        left, right = a.astype(wide_type), b.astype(wide_type)
        near = jnp.abs(left - right) <= atol + jnp.abs(rtol * right)
        close = close | (near & jnp.isfinite(left) & jnp.isfinite(right))
        if equal_nan:
            close = close | (jnp.isnan(left) & jnp.isnan(right))
        return close
    return close | (jnp.abs(a - b) <= atol + jnp.abs(rtol * b))


@lowers("aten.equal.default")
def _equal(call: Any, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.asarray(a.shape == b.shape) & jnp.all(a == b) if a.shape == b.shape else jnp.asarray(False)


@lowers("aten.allclose.default")
def _allclose(
    call: Any, a: jax.Array, b: jax.Array, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> jax.Array:
    return jnp.all(_isclose(call, a, b, rtol, atol, equal_nan))


@lowers("detente.keep_gradient", note="x.clamp_(min=0) under no_grad: another value, the gradient that x had")
def _keep_gradient(call: Any, old: jax.Array, new: jax.Array) -> jax.Array:
    return with_gradient(jax.lax.stop_gradient(new), old)
