"""Two or three tensors (or numbers) broadcast into one: arithmetic, comparison, logic, selection.

Result dtypes come from ATen (``call.out``); comparisons promote their operands as ``torch.result_type`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from detente.bridge.lower.dtypes import (
    NotForComplex,
    cast,
    is_bool,
    is_complex,
    is_float,
    is_integer,
    out_dtype,
    promote,
    wide,
)
from detente.bridge.lower.gradient import derived, with_gradient
from detente.bridge.lower.ops.pointwise import pointwise
from detente.bridge.lower.table import lowers
from detente.bridge.passes.exact import EXACT


@lowers("aten.add.Tensor", "aten.add.Scalar")
def _add(call: Any, a: Any, b: Any, alpha: Any = 1) -> jax.Array:
    dtype = out_dtype(call)
    if is_bool(dtype):
        return jnp.logical_or(cast(a, bool), jnp.logical_and(cast(b, bool), bool(alpha)))
    if alpha == 1:
        a, b = cast(a, wide(dtype)), cast(b, wide(dtype))
        return cast(a + (hidden(a, b) if EXACT in call.node.marks else b), dtype)
    return cast(cast(a, wide(dtype)) + cast(alpha, wide(dtype)) * cast(b, wide(dtype)), dtype)


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(call: Any, a: Any, b: Any, alpha: Any = 1) -> jax.Array:
    dtype = out_dtype(call)
    a, b = cast(a, wide(dtype)), cast(b, wide(dtype))
    b = hidden(a, b) if EXACT in call.node.marks else b
    return cast(a - (b if alpha == 1 else cast(alpha, wide(dtype)) * b), dtype)


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def _rsub(call: Any, a: Any, b: Any, alpha: Any = 1) -> jax.Array:
    return _sub(call, b, a, alpha)


@lowers("aten.mul.Tensor", "aten.mul.Scalar")
def _mul(call: Any, a: Any, b: Any) -> jax.Array:
    dtype = out_dtype(call)
    if is_bool(dtype):
        return jnp.logical_and(cast(a, bool), cast(b, bool))
    return cast(cast(a, wide(dtype)) * cast(b, wide(dtype)), dtype)


def _zero_divisor(call: Any, dtype: np.dtype, b: Any) -> Any:
    """Faults where torch raises on an integer division by zero; returns a divisor that is safe to use."""
    if not is_integer(dtype):
        return b
    b = cast(b, dtype)
    call.fault(jnp.any(b == 0), "RuntimeError: ZeroDivisionError: integer division or modulo by zero")
    return jnp.where(b == 0, jnp.ones_like(b), b)


def _floor_divide(call: Any, dtype: np.dtype, a: Any, b: Any) -> jax.Array:
    """Floor division as ATen computes it: exact for integers; ``(a - fmod(a, b)) / b`` corrected for floats."""
    if not is_float(dtype):
        a, b = cast(a, dtype), _zero_divisor(call, dtype, b)
        return jnp.floor_divide(a, b)
    a, b = jnp.broadcast_arrays(cast(a, wide(dtype)), cast(b, wide(dtype)))
    rest = lax.rem(a, b)
    quotient = (a - rest) / b
    quotient = jnp.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    floored = jnp.floor(quotient)
    floored = jnp.where(quotient - floored > 0.5, floored + 1, floored)
    floored = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(a), a / b), floored)
    return cast(lax.stop_gradient(jnp.where(b == 0, a / b, floored)), dtype)


@lowers(
    "aten.div.Tensor",
    "aten.div.Scalar",
    "aten.true_divide.Tensor",
    "aten.true_divide.Scalar",
    "aten.divide.Tensor",
    "aten.divide.Scalar",
)
def _div(call: Any, a: Any, b: Any) -> jax.Array:
    dtype = out_dtype(call)
    a, b = cast(a, wide(dtype)), cast(b, wide(dtype))
    return cast(a / (hidden(a, b) if EXACT in call.node.marks else b), dtype)


def hidden(a: jax.Array, b: jax.Array) -> jax.Array:
    """One number ``b`` that ``a`` is to be divided by, or moved by, so that the compiler does not know it. By a number
    that it knows it does not divide, it multiplies by the reciprocal, which is a digit off; it does so as well with one
    behind a barrier that is broadcast. Where ``a`` is NaN so is the result, whatever ``b`` is: it is ``a`` there."""
    return b if b.ndim or not is_float(b.dtype) else jnp.where(jnp.isnan(a), lax.stop_gradient(a), b)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(call: Any, a: Any, b: Any, rounding_mode: str | None = None) -> jax.Array:
    dtype = out_dtype(call)
    if rounding_mode is None:
        return _div(call, a, b)
    if rounding_mode == "floor":
        return _floor_divide(call, dtype, a, b)
    if is_integer(dtype):
        return lax.div(*jnp.broadcast_arrays(cast(a, dtype), _zero_divisor(call, dtype, b)))
    a, b = cast(a, wide(dtype)), cast(b, wide(dtype))
    return cast(lax.stop_gradient(jnp.trunc(a / hidden(a, b))), dtype)


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _floor_divide_entry(call: Any, a: Any, b: Any) -> jax.Array:
    return _floor_divide(call, out_dtype(call), a, b)


@lowers("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def _remainder(call: Any, a: Any, b: Any) -> jax.Array:
    dtype = out_dtype(call)
    b = _zero_divisor(call, dtype, b)
    return cast(jnp.remainder(cast(a, wide(dtype)), cast(b, wide(dtype))), dtype)


@lowers("aten.fmod.Tensor", "aten.fmod.Scalar")
def _fmod(call: Any, a: Any, b: Any) -> jax.Array:
    dtype = out_dtype(call)
    b = _zero_divisor(call, dtype, b)
    return cast(lax.rem(*jnp.broadcast_arrays(cast(a, wide(dtype)), cast(b, wide(dtype)))), dtype)


def _float_power(a: Any, b: Any) -> jax.Array:
    """``a ** b`` with torch's gradients: none through ``a`` where ``b`` is 0, none through ``b`` where ``a`` is 0."""
    b_flat = b == 0
    dead = (a == 0) & (jnp.real(b) >= 0)
    power = jnp.where(b_flat, 1, jnp.power(jnp.where(b_flat, 1, a), lax.stop_gradient(b)))
    pole = (a == 0) & ~dead  # 0 to a negative power is infinite and falls infinitely fast
    through_b = jnp.power(lax.stop_gradient(jnp.where(dead | pole, 1, a)), b)
    through_b = jnp.where(pole, jnp.where(pole, -jnp.inf, 0) * b, through_b)
    # Value of `power`; the gradient through b is added as a term whose value is exactly zero.
    return power + jnp.where(dead, 0, with_gradient(jnp.zeros_like(through_b), through_b))


@lowers("aten.pow.Tensor_Scalar", "aten.float_power.Tensor_Scalar")
def _pow_scalar(call: Any, a: jax.Array, exponent: Any) -> jax.Array:
    dtype = out_dtype(call)
    a = cast(a, wide(dtype))
    if is_integer(dtype) or (
        isinstance(exponent, int | float) and float(exponent).is_integer() and abs(exponent) <= 32
    ):
        return cast(_integer_power(a, int(exponent)), dtype)
    if exponent == 0.5:
        return cast(jnp.sqrt(a), dtype)
    if exponent == -0.5:
        return cast(lax.rsqrt(a), dtype)
    return cast(jnp.power(a, jnp.asarray(exponent, a.dtype)), dtype)


def _integer_power(a: jax.Array, exponent: int) -> jax.Array:
    if exponent >= 0 or not is_integer(a.dtype):
        return lax.integer_pow(a, exponent)
    # An integer to a negative power: 1 for 1, +-1 for -1, else 0 (torch's kernel).
    sign = jnp.where(exponent % 2 == 0, jnp.ones_like(a), -jnp.ones_like(a))
    return jnp.where(a == 1, 1, jnp.where(a == -1, sign, 0)).astype(a.dtype)


@lowers(
    "aten.pow.Tensor_Tensor",
    "aten.pow.Scalar",
    "aten.float_power.Tensor_Tensor",
    "aten.float_power.Scalar",
)
def _pow_tensor(call: Any, a: Any, b: Any) -> jax.Array:
    dtype = out_dtype(call)
    a, b = jnp.broadcast_arrays(cast(a, wide(dtype)), cast(b, wide(dtype)))
    if is_float(dtype) or is_complex(dtype):
        return cast(_float_power(a, b), dtype)
    if is_bool(dtype):
        return jnp.logical_or(a, jnp.logical_not(b))
    positive = jnp.power(a, jnp.maximum(b, 0))
    negative = jnp.where(a == 1, 1, jnp.where(a == -1, jnp.where(b % 2 == 0, 1, -1), 0))
    return jnp.where(b >= 0, positive, negative).astype(dtype)


def _xlogy(x: jax.Array, y: jax.Array) -> jax.Array:
    return _x_times(jnp.log, 0, x, y)


def _xlog1py(x: jax.Array, y: jax.Array) -> jax.Array:
    return _x_times(jnp.log1p, -1, x, y)


def _x_times(log: Callable[[jax.Array], jax.Array], pole: float, x: jax.Array, y: jax.Array) -> jax.Array:
    zero = (x == 0) & ~jnp.isnan(y)
    value = jnp.where(zero, 0, x * log(jnp.where(zero, 1, y)))
    # Where x is 0 its gradient is still the logarithm, unless y is at its pole or beyond.
    dead = (x == 0) & (y <= pole)
    return with_gradient(lax.stop_gradient(value), jnp.where(dead, 0, x) * log(y))


# The gradients are sigmoids: beside plus infinity jax's rule gives more than 1.
log_add = derived(jnp.logaddexp, lambda a, b: jax.nn.sigmoid(a - b), lambda a, b: jax.nn.sigmoid(b - a))
_logaddexp2 = derived(
    jnp.logaddexp2,
    lambda a, b: jax.nn.sigmoid((a - b) * math.log(2)),
    lambda a, b: jax.nn.sigmoid((b - a) * math.log(2)),
)


def _logaddexp(a: jax.Array, b: jax.Array) -> jax.Array:
    if is_complex(a.dtype):  # torch takes the branch of the larger operand, and no further than that
        raise NotForComplex("logaddexp")
    return log_add(a, b)


def _atan2(a: jax.Array, b: jax.Array) -> jax.Array:
    # The gradient at the origin is 0 in torch.
    origin = (a == 0) & (b == 0)
    safe = jnp.arctan2(jnp.where(origin, lax.stop_gradient(a), a), jnp.where(origin, 1, b))
    return jnp.where(origin, lax.stop_gradient(jnp.arctan2(a, b)), safe)


def _hypot_slope(a: jax.Array, b: jax.Array) -> jax.Array:
    return a / _hypot(a, b)  # NaN at the origin, as torch has it


_hypot = derived(jnp.hypot, _hypot_slope, lambda a, b: _hypot_slope(b, a))


def _copysign(a: jax.Array, b: jax.Array) -> jax.Array:
    flip = jnp.where(jnp.signbit(a) == jnp.signbit(b), 1, -1).astype(a.dtype)
    return jnp.where(a == 0, jnp.copysign(lax.stop_gradient(a), b), a * flip)


def _fmax(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where((a >= b) | jnp.isnan(b), a, b) if is_float(a.dtype) else jnp.maximum(a, b)


def _fmin(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where((a <= b) | jnp.isnan(b), a, b) if is_float(a.dtype) else jnp.minimum(a, b)


def _chosen(choose: Any, loses: Any) -> Any:
    """maximum and minimum with torch's gradients: half to each of two equals, all of it to both beside a NaN."""

    def lower(a: jax.Array, b: jax.Array) -> jax.Array:
        if not is_float(a.dtype):
            return choose(a, b)
        tied = jnp.where(a == b, jnp.asarray(0.5, a.dtype), 1)
        through = jnp.where(loses(a, b), 0, tied) * a + jnp.where(loses(b, a), 0, tied) * b
        return with_gradient(choose(*map(lax.stop_gradient, (a, b))), through)

    return lower


BINARY: dict[tuple[str, ...], Callable[[jax.Array, jax.Array], jax.Array]] = {
    ("aten.atan2.default", "aten.arctan2.default"): _atan2,
    ("aten.hypot.default",): _hypot,
    ("aten.maximum.default", "aten.max.other"): _chosen(jnp.maximum, jnp.less),
    ("aten.minimum.default", "aten.min.other"): _chosen(jnp.minimum, jnp.greater),
    ("aten.fmax.default",): _fmax,
    ("aten.fmin.default",): _fmin,
    ("aten.logaddexp.default",): _logaddexp,
    ("aten.logaddexp2.default",): _logaddexp2,
    ("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other"): _xlogy,
    (
        "aten.special_xlogy.default",
        "aten.special_xlogy.self_scalar",
        "aten.special_xlogy.other_scalar",
    ): _xlogy,
    (
        "aten.special_xlog1py.default",
        "aten.special_xlog1py.self_scalar",
        "aten.special_xlog1py.other_scalar",
    ): _xlog1py,
    (
        "aten.special_zeta.default",
        "aten.special_zeta.self_scalar",
        "aten.special_zeta.other_scalar",
    ): special.zeta,
    ("aten.copysign.Tensor", "aten.copysign.Scalar"): _copysign,
    ("aten.nextafter.default",): lambda a, b: with_gradient(
        jnp.nextafter(*map(lax.stop_gradient, (a, b))), jnp.where(a == b, 0, a)
    ),
    ("aten.gcd.default",): jnp.gcd,
    ("aten.lcm.default",): jnp.lcm,
    ("aten.igamma.default", "aten.special_gammainc.default"): special.gammainc,
    ("aten.igammac.default", "aten.special_gammaincc.default"): special.gammaincc,
    ("aten.ldexp.Tensor",): lambda a, b: a * jnp.exp2(b),
}
for _names, _function in BINARY.items():
    lowers(*_names)(pointwise(_function))


@lowers("aten.heaviside.default")
def _heaviside(call: Any, x: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(x == 0, values, (x > 0).astype(x.dtype))


def _compare(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def lower(call: Any, a: Any, b: Any) -> jax.Array:
        dtype = promote(a, b)
        return function(cast(a, dtype), cast(b, dtype))

    return lower


for _name, _function in {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "not_equal": jnp.not_equal,
    "lt": jnp.less,
    "less": jnp.less,
    "le": jnp.less_equal,
    "less_equal": jnp.less_equal,
    "gt": jnp.greater,
    "greater": jnp.greater,
    "ge": jnp.greater_equal,
    "greater_equal": jnp.greater_equal,
}.items():
    lowers(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_compare(_function))


def _logical(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda call, a, b: function(jnp.asarray(a) != 0, jnp.asarray(b) != 0)


lowers("aten.logical_and.default")(_logical(jnp.logical_and))
lowers("aten.logical_or.default")(_logical(jnp.logical_or))
lowers("aten.logical_xor.default")(_logical(jnp.logical_xor))

for _name, _dunder, _function in (
    ("bitwise_and", "__and__", jnp.bitwise_and),
    ("bitwise_or", "__or__", jnp.bitwise_or),
    ("bitwise_xor", "__xor__", jnp.bitwise_xor),
):
    _overloads = [f"aten.{_name}.{o}" for o in ("Tensor", "Scalar", "Scalar_Tensor")]
    lowers(*_overloads, f"aten.{_dunder}.Tensor", f"aten.{_dunder}.Scalar")(pointwise(_function))


def _shift(function: Callable[..., Any], left: bool) -> Callable[..., Any]:
    def lower(call: Any, a: Any, b: Any) -> jax.Array:
        dtype = out_dtype(call)
        a, b = jnp.broadcast_arrays(cast(a, dtype), cast(b, dtype))
        width = jnp.iinfo(dtype).bits
        outside = (b < 0) | (b >= width)
        past = jnp.zeros_like(a) if left else jnp.where(a < 0, -1, 0).astype(dtype)
        return jnp.where(outside, past, function(a, jnp.where(outside, 0, b)))

    return lower


lowers(
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.__lshift__.Tensor",
    "aten.__lshift__.Scalar",
    "aten.bitwise_left_shift.Scalar_Tensor",
)(_shift(jnp.left_shift, True))
lowers(
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.__rshift__.Tensor",
    "aten.__rshift__.Scalar",
    "aten.bitwise_right_shift.Scalar_Tensor",
)(_shift(jnp.right_shift, False))
