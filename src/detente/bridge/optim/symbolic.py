"""Table rows for what the optimizer tracer adds to ATen: arithmetic on numbers, and operators that take one.

``number.*`` is Python's float arithmetic: 0-d float64. ``symbolic.aten.X`` is ``aten.X`` called with a number
that is only known at run time; ATen turns such a scalar into the kernel's arithmetic type (float32 for
float32 and bfloat16, float64 for float64), which is what happens here before the table's own ``aten.X`` runs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.dtypes import cast, jax_dtype, out_dtype, wide
from detente.bridge.lower.table import TABLE, lowers

# operators whose own entry takes an array where ATen has a scalar
PLAIN = (
    "aten.mul.Tensor",
    "aten.div.Tensor",
    "aten.full.default",
    "aten.fill.Scalar",
    "aten.maximum.default",
    "aten.minimum.default",
    "aten.eq.Scalar",
    "aten.ne.Scalar",
    "aten.gt.Scalar",
    "aten.ge.Scalar",
    "aten.lt.Scalar",
    "aten.le.Scalar",
    "aten.masked_fill.Scalar",
    "aten.where.Scalar",
    "aten.where.ScalarSelf",
    "aten.where.ScalarOther",
)


def _double(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.float64)


def _binary(name: str, function: Any) -> None:
    lowers(f"number.{name}")(lambda call, a, b: function(_double(a), _double(b)))


def _unary(name: str, function: Any) -> None:
    lowers(f"number.{name}")(lambda call, a: function(_double(a)))


for _name, _function in {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "pow": lax.pow,
    "max": lax.max,
    "min": lax.min,
    "mod": jnp.mod,
    "floordiv": jnp.floor_divide,
    "gt": lax.gt,
    "lt": lax.lt,
    "ge": lax.ge,
    "le": lax.le,
    "eq": lax.eq,
    "ne": lax.ne,
}.items():
    _binary(_name, _function)
for _name, _function in {"neg": lax.neg, "sqrt": lax.sqrt, "exp": lax.exp, "log": lax.log}.items():
    _unary(_name, _function)
lowers("number.not")(lambda call, a: jnp.logical_not(a))
lowers("number.and")(lambda call, a, b: jnp.logical_and(a, b))
lowers("number.or")(lambda call, a, b: jnp.logical_or(a, b))


@lowers("number.item")
def _item(call: Any, x: jax.Array) -> jax.Array:
    return jnp.asarray(x).reshape(()).astype(jax_dtype(call.out.dtype))


def _kind(call: Any, tensors: tuple[Any, ...]) -> Any:
    """The type ATen computes in: that of the result, or of the operands where the result is a bool."""
    dtype = out_dtype(call)
    if dtype.kind != "b":
        return wide(dtype)
    return wide(next(t.dtype for t in tensors if isinstance(t, jax.Array) and t.dtype.kind != "b"))


def _scalar(value: Any, kind: Any) -> Any:
    """A number (0-d float64 array) in the arithmetic type. A real 0-d float64 tensor among other tensors takes
    part in promotion as a scalar does, so it may be cast alike."""
    number = isinstance(value, jax.Array) and value.ndim == 0 and value.dtype == jnp.float64
    return cast(value, kind) if number else value


def _plain(op: str) -> None:
    def lower(call: Any, *args: Any, **named: Any) -> Any:
        kind = _kind(call, args)
        return TABLE[op].lower(
            call, *(_scalar(a, kind) for a in args), **{k: _scalar(v, kind) for k, v in named.items()}
        )

    lowers(f"symbolic.{op}")(lower)


for _op in PLAIN:
    _plain(_op)


@lowers("symbolic.aten.add.Tensor", "symbolic.aten.add.Scalar")
def _add(call: Any, a: Any, b: Any, alpha: Any = 1) -> jax.Array:
    kind = _kind(call, (a, b))
    a, b = cast(a, kind), cast(b, kind)
    return cast(a + (b if isinstance(alpha, int) and alpha == 1 else cast(alpha, kind) * b), out_dtype(call))


@lowers("symbolic.aten.sub.Tensor", "symbolic.aten.sub.Scalar")
def _sub(call: Any, a: Any, b: Any, alpha: Any = 1) -> jax.Array:
    return _add(call, a, b, -alpha if not isinstance(alpha, jax.Array) else lax.neg(alpha))


@lowers("symbolic.aten.rsub.Scalar")
def _rsub(call: Any, a: Any, b: Any, alpha: Any = 1) -> jax.Array:
    return _sub(call, b, a, alpha)


@lowers("symbolic.aten.addcmul.default")
def _addcmul(call: Any, x: Any, a: Any, b: Any, *, value: Any = 1) -> jax.Array:
    kind = _kind(call, (x,))
    return cast(cast(x, kind) + cast(value, kind) * cast(a, kind) * cast(b, kind), out_dtype(call))


@lowers("symbolic.aten.addcdiv.default")
def _addcdiv(call: Any, x: Any, a: Any, b: Any, *, value: Any = 1) -> jax.Array:
    kind = _kind(call, (x,))
    return cast(cast(x, kind) + cast(value, kind) * cast(a, kind) / cast(b, kind), out_dtype(call))


@lowers("symbolic.aten.lerp.Scalar")
def _lerp(call: Any, a: Any, b: Any, weight: Any) -> jax.Array:
    # ATen's formula changes side at one half, so that weight 1 gives b exactly
    kind = _kind(call, (a,))
    a, b, weight = cast(a, kind), cast(b, kind), cast(weight, kind)
    near = a + weight * (b - a)
    far = b - (b - a) * (1 - weight)
    return cast(jnp.where(jnp.abs(weight) < 0.5, near, far), out_dtype(call))


@lowers("symbolic.aten.clamp.default", "symbolic.aten.clamp_min.default")
def _clamp(
    call: Any, x: Any, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None
) -> jax.Array:
    kind = _kind(call, (x,))
    x, low, high = cast(x, kind), min if low is None else low, max if high is None else high
    if low is not None:
        x = jnp.maximum(x, cast(low, kind))
    if high is not None:
        x = jnp.minimum(x, cast(high, kind))
    return cast(x, out_dtype(call))


@lowers("symbolic.aten.clamp_max.default")
def _clamp_max(call: Any, x: Any, high: Any) -> jax.Array:
    return _clamp(call, x, None, high)


@lowers("symbolic.aten.pow.Tensor_Scalar")
def _pow(call: Any, x: Any, exponent: Any) -> jax.Array:
    kind = _kind(call, (x,))
    return cast(jnp.power(cast(x, kind), cast(exponent, kind)), out_dtype(call))


@lowers("symbolic.aten.pow.Scalar")
def _pow_of(call: Any, base: Any, exponent: Any) -> jax.Array:
    return _pow(call, base, exponent)


@lowers("symbolic.aten.softplus.default")
def _softplus(call: Any, x: Any, beta: Any = 1, threshold: Any = 20) -> jax.Array:
    kind = _kind(call, (x,))
    x, beta = cast(x, kind), cast(beta, kind)
    linear = x * beta > cast(threshold, kind)
    curve = jnp.log1p(jnp.exp(jnp.where(linear, 0, x * beta))) / beta
    return cast(jnp.where(linear, x, curve), out_dtype(call))


@lowers("symbolic.aten.addmm.default", "symbolic.aten.addmv.default", "symbolic.aten.baddbmm.default")
def _addmm(call: Any, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    kind = _kind(call, (x,))
    product = jnp.matmul(a, b, preferred_element_type=kind)
    return cast(cast(beta, kind) * cast(x, kind) + cast(alpha, kind) * product, out_dtype(call))
