"""One tensor in, one tensor of the same shape out: rounding, powers, exponentials, trigonometry, predicates.

Half precision is computed in float32 and rounded once. Integers enter the float functions as float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from detente.bridge.lower.dtypes import (
    cast,
    compute,
    is_bool,
    is_complex,
    is_float,
    is_integer,
    out_dtype,
    wide,
)
from detente.bridge.lower.gradient import derived
from detente.bridge.lower.table import lowers


def pointwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """An entry that casts every operand to ATen's compute dtype of the result, applies ``function``, rounds once."""

    def lower(call: Any, *operands: Any) -> jax.Array:
        dtype = out_dtype(call)
        return cast(function(*(cast(x, compute(x, dtype)) for x in operands)), dtype)

    lower.__name__ = getattr(function, "__name__", "pointwise")
    return lower


def _trigamma(x: jax.Array) -> jax.Array:
    """The derivative of digamma, by reflection on the left half line (jax's polygamma is for finite x > 0)."""
    left = x < 0.5
    right = special.polygamma(1, jnp.where(left, 1 - x, x))
    right = jnp.where(jnp.isposinf(x), 0, right)
    return jnp.where(left, (jnp.pi / jnp.sin(jnp.pi * x)) ** 2 - right, right)


def _digamma(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, -jnp.copysign(jnp.inf, x), special.digamma(x))


def _ndtri_slope(x: jax.Array) -> jax.Array:
    return math.sqrt(2 * math.pi) * jnp.exp(_ndtri(x) ** 2 / 2)


def _i0_slope(x: jax.Array) -> jax.Array:
    return _i1(x)


def _i0e_slope(x: jax.Array) -> jax.Array:
    return _i1e(x) - sign(x) * _i0e(x)


def _i1_slope(x: jax.Array) -> jax.Array:
    safe = jnp.where(x == 0, 1, x)
    return jnp.where(x == 0, 0.5, _i0(x) - _i1(x) / safe)


def _i1e_slope(x: jax.Array) -> jax.Array:
    safe = jnp.where(x == 0, 1, x)
    return jnp.where(x == 0, 0.5, _i0e(x) - _i1e(x) * (sign(x) + 1 / safe))


digamma = derived(_digamma, _trigamma)
_lgamma = derived(special.gammaln, digamma)
_ndtri = derived(special.ndtri, _ndtri_slope)
_i0 = derived(special.i0, _i0_slope)
_i0e = derived(special.i0e, _i0e_slope)
_i1 = derived(special.i1, _i1_slope)
_i1e = derived(special.i1e, _i1e_slope)


def _frac(x: jax.Array) -> jax.Array:
    return x - jnp.trunc(x)


def sign(x: jax.Array) -> jax.Array:
    """-1, 0 or 1; 0 for NaN, as ATen's ``(x > 0) - (x < 0)``."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype) if not is_bool(x.dtype) else x


@jax.custom_jvp
def _real_abs(x: jax.Array) -> jax.Array:
    return jnp.abs(x)


@_real_abs.defjvp
def _real_abs_jvp(primals: Any, tangents: Any) -> Any:
    # jax 0.10 has gradient 1 at 0; torch has 0.
    return _real_abs(primals[0]), tangents[0] * sign(primals[0])


def absolute(x: jax.Array) -> jax.Array:
    """``|x|`` of real or complex numbers with gradient 0 at 0."""
    if not is_complex(x.dtype):
        return _real_abs(x) if is_float(x.dtype) else jnp.abs(x)
    zero = x == 0
    return jnp.where(zero, 0, jnp.abs(jnp.where(zero, 1, x)))


def _sgn(x: jax.Array) -> jax.Array:
    if not is_complex(x.dtype):
        return sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size))


def _sinc(x: jax.Array) -> jax.Array:
    return jnp.sinc(x)


def _logit_plain(x: jax.Array) -> jax.Array:
    return jnp.log(x) - jnp.log1p(-x)


def _angle(x: jax.Array) -> jax.Array:
    if is_complex(x.dtype):
        # At zero the gradient is 0, and the angle that of its signs.
        zero = x == 0
        return jnp.where(zero, lax.stop_gradient(jnp.angle(x)), jnp.angle(jnp.where(zero, 1, x)))
    # torch gives 0 or pi for real numbers and keeps NaN; the gradient is zero.
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, jnp.pi, 0.0).astype(x.dtype))


def _rsqrt(x: jax.Array) -> jax.Array:
    return lax.rsqrt(x)


FLOAT: dict[str, Callable[[jax.Array], jax.Array]] = {
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "deg2rad": jnp.deg2rad,
    "digamma": digamma,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": special.erfinv,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "i0": _i0,
    "lgamma": _lgamma,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "rad2deg": jnp.rad2deg,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": _rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
    "sinc": _sinc,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "special_digamma": digamma,
    "special_psi": digamma,
    "special_entr": special.entr,
    "special_erf": special.erf,
    "special_erfc": special.erfc,
    "special_erfinv": special.erfinv,
    "special_exp2": jnp.exp2,
    "special_expit": jax.nn.sigmoid,
    "special_expm1": jnp.expm1,
    "special_gammaln": _lgamma,
    "special_i0": _i0,
    "special_i0e": _i0e,
    "special_i1": _i1,
    "special_i1e": _i1e,
    "special_log1p": jnp.log1p,
    "special_modified_bessel_i0": _i0,
    "special_modified_bessel_i1": _i1,
    "special_log_ndtr": special.log_ndtr,
    "special_ndtr": special.ndtr,
    "special_ndtri": _ndtri,
    "special_sinc": _sinc,
}
for _name, _function in FLOAT.items():
    lowers(f"aten.{_name}.default")(pointwise(_function))


def _round(x: jax.Array) -> jax.Array:
    return x if is_integer(x.dtype) else jnp.round(x)


def _whole(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    def apply(x: jax.Array) -> jax.Array:
        return function(x) if is_float(x.dtype) else x

    return apply


SAME: dict[str, Callable[[jax.Array], jax.Array]] = {
    "abs": absolute,
    "ceil": _whole(jnp.ceil),
    "floor": _whole(jnp.floor),
    "frac": _frac,
    "neg": jnp.negative,
    "positive": lambda x: x,
    "round": _round,
    "sgn": _sgn,
    "sign": sign,
    "square": jnp.square,
    "trunc": _whole(jnp.trunc),
    "fix": _whole(jnp.trunc),
    "conj": jnp.conj,
    "conj_physical": jnp.conj,
    "_conj": jnp.conj,
    "_conj_physical": jnp.conj,
    "_conj_copy": jnp.conj,
    "_neg_view": jnp.negative,
    "_neg_view_copy": jnp.negative,
    "resolve_conj": lambda x: x,
    "resolve_neg": lambda x: x,
    "special_round": _round,
}
for _name, _function in SAME.items():
    lowers(f"aten.{_name}.default")(pointwise(_function))


@lowers("aten.round.decimals")
def _round_decimals(call: Any, x: jax.Array, decimals: int = 0) -> jax.Array:
    dtype = out_dtype(call)
    x = cast(x, wide(dtype))
    if not is_float(x.dtype):
        return cast(x, dtype)
    scale = jnp.asarray(10.0 ** abs(decimals), x.dtype)
    rounded = jnp.round(x * scale) / scale if decimals >= 0 else jnp.round(x / scale) * scale
    # torch's gradient is zero, not that of the scaling.
    return cast(lax.stop_gradient(rounded), dtype)


PREDICATES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "isneginf": jnp.isneginf,
    "isposinf": jnp.isposinf,
    "isreal": lambda x: jnp.imag(x) == 0 if is_complex(x.dtype) else jnp.ones(x.shape, bool),
    "logical_not": lambda x: x == 0,
    "signbit": lambda x: jnp.signbit(x) if is_float(x.dtype) else x < 0,
    "bitwise_not": jnp.bitwise_not,
}
for _name, _function in PREDICATES.items():
    lowers(f"aten.{_name}.default")(lambda call, x, _f=_function: _f(x))


@lowers("aten.angle.default")
def _angle_entry(call: Any, x: jax.Array) -> jax.Array:
    dtype = out_dtype(call)
    return cast(_angle(x if is_complex(x.dtype) else cast(x, wide(dtype))), dtype)


lowers("aten.real.default")(lambda call, x: jnp.real(x))
lowers("aten.imag.default")(lambda call, x: jnp.imag(x))
lowers("aten.view_as_real.default", "aten.view_as_real_copy.default")(
    lambda call, x: jnp.stack([jnp.real(x), jnp.imag(x)], -1)
)
lowers("aten.view_as_complex.default", "aten.view_as_complex_copy.default")(
    lambda call, x: lax.complex(x[..., 0], x[..., 1])
)
lowers("aten.complex.default")(
    lambda call, real, imaginary: lax.complex(*jnp.broadcast_arrays(real, imaginary))
)
lowers("aten.polar.default")(
    lambda call, size, angle: lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))
)


@lowers("aten.logit.default", "aten.special_logit.default")
def _logit(call: Any, x: jax.Array, eps: float | None = None) -> jax.Array:
    dtype = out_dtype(call)
    x = cast(x, wide(dtype))
    if eps is None:
        inside = (x >= 0) & (x <= 1)
        # outside the value and the gradient are NaN
        return cast(_logit_plain(x * jnp.where(inside, 1, jnp.nan)), dtype)
    low, high = jnp.asarray(eps, x.dtype), jnp.asarray(1 - eps, x.dtype)
    # Outside [eps, 1 - eps] the value is clamped and the gradient is zero.
    x = jnp.where(x < low, low, jnp.where(x > high, high, x))
    return cast(_logit_plain(x), dtype)


@lowers("aten.nan_to_num.default")
def _nan_to_num(
    call: Any,
    x: jax.Array,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> jax.Array:
    if not (is_float(x.dtype) or is_complex(x.dtype)):
        return x
    if is_complex(x.dtype):
        parts = (_nan_to_num(call, part, nan, posinf, neginf) for part in (jnp.real(x), jnp.imag(x)))
        return lax.complex(*parts)
    limits = jnp.finfo(x.dtype)
    x = jnp.where(jnp.isnan(x), jnp.asarray(0.0 if nan is None else nan, x.dtype), x)
    x = jnp.where(x == jnp.inf, jnp.asarray(limits.max if posinf is None else posinf, x.dtype), x)
    return jnp.where(x == -jnp.inf, jnp.asarray(limits.min if neginf is None else neginf, x.dtype), x)


@lowers("aten.polygamma.default", "aten.special_polygamma.default")
def _polygamma(call: Any, n: int, x: jax.Array) -> jax.Array:
    dtype = out_dtype(call)
    x = cast(x, wide(dtype))
    if n < 2:
        return cast(_trigamma(x) if n else digamma(x), dtype)
    return cast(special.polygamma(n, x), dtype)


@lowers("aten.mvlgamma.default", "aten.special_multigammaln.default")
def _mvlgamma(call: Any, x: jax.Array, p: int) -> jax.Array:
    dtype = out_dtype(call)
    x = cast(x, wide(dtype))
    parts = [_lgamma(x - i / 2) for i in range(p)]
    return cast(sum(parts[1:], parts[0]) + p * (p - 1) / 4 * jnp.log(jnp.asarray(jnp.pi, x.dtype)), dtype)


@lowers("aten.frexp.Tensor")
def _frexp(call: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mantissa, exponent = jnp.frexp(x)
    return mantissa, exponent.astype(jnp.int32)
