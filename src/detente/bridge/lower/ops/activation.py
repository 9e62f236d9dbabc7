"""Activations of torch.nn: relu and its family, gelu, silu, softplus, shrinkages, gated units.

All are computed in float32 for half precision and rounded once. Values at kinks have torch's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from detente.bridge.lower.dtypes import cast, out_dtype, wide
from detente.bridge.lower.gradient import by_result, derived
from detente.bridge.lower.ops.pointwise import pointwise
from detente.bridge.lower.ops.random import unit
from detente.bridge.lower.table import lowers

_INNER = math.sqrt(2 / math.pi)


def activation(function: Callable[..., Any]) -> Callable[..., Any]:
    """An entry for ``function(x, *numbers)``: ``x`` in ATen's compute dtype, the result rounded once."""

    def lower(call: Any, x: jax.Array, *args: Any, **named: Any) -> jax.Array:
        dtype = out_dtype(call)
        return cast(function(cast(x, wide(dtype)), *args, **named), dtype)

    return lower


def _clamped(x: jax.Array) -> jax.Array:
    # NaN passes through and the gradient at 0 is 0, as in ATen (threshold_backward).
    return jnp.where(x <= 0, jnp.zeros_like(x), x)


_relu = by_result(_clamped, lambda y, t: jnp.where(y <= 0, jnp.zeros_like(t), t))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _gelu(x: jax.Array, approximate: str = "none") -> jax.Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_INNER * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + special.erf(x * math.sqrt(0.5)))


@_gelu.defjvp
def _of_gelu(
    approximate: str, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # erf and tanh are computed again, of the negative, whose value is the same to the last bit: of what is written the
    # same way twice XLA makes one, writes it to memory for its two readers, and keeps it from the forward pass on.
    (x,) = primals
    if approximate == "tanh":
        curve = -jnp.tanh(-_INNER * (x + 0.044715 * x * x * x))
        steep = _INNER * (1 + 3 * 0.044715 * x * x) * (1 - curve * curve)
    else:
        curve = -special.erf(x * -math.sqrt(0.5))
        steep = _INNER * jnp.exp(-0.5 * x * x)
    return _gelu(x, approximate), tangents[0] * (0.5 * (1 + curve) + 0.5 * x * steep)


def _softplus(x: jax.Array, beta: float = 1, threshold: float = 20) -> jax.Array:
    scaled = x * beta
    linear = scaled > threshold
    return jnp.where(linear, x, jnp.log1p(jnp.exp(jnp.where(linear, 0, scaled))) / beta)


# jax differentiates expm1 as its value + 1, which has lost its digits where the value is near -1
_growth = derived(jnp.expm1, jnp.exp)


def _elu(x: jax.Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> jax.Array:
    negative = x <= 0
    curve = _growth(jnp.where(negative, x, 0) * input_scale) * (alpha * scale)
    return jnp.where(negative, curve, x * scale)


def _celu(x: jax.Array, alpha: float = 1.0) -> jax.Array:
    return _elu(x, alpha, 1.0, 1.0 / alpha)


def _between(x: jax.Array, min_val: float = -1, max_val: float = 1) -> jax.Array:
    return jnp.where(x <= min_val, min_val, jnp.where(x >= max_val, max_val, x)).astype(x.dtype)


# Outside and on the bounds the gradient is zero (hardtanh_backward is strict, unlike clamp's).
_hardtanh = by_result(
    _between,
    lambda y, t, min_val=-1, max_val=1: jnp.where((y <= min_val) | (y >= max_val), jnp.zeros_like(t), t),
)


def _hardsigmoid(x: jax.Array) -> jax.Array:
    return _hardtanh(x + 3, 0, 6) / 6


def _hardswish(x: jax.Array) -> jax.Array:
    # hardswish_backward: 0 below -3, 1 above 3, x/3 + 1/2 between with the bounds on either side.
    inside = jnp.where(jnp.abs(x) < 3, x, 0)  # an infinity's product with 0 is NaN, in the gradient too
    below = lax.stop_gradient(x) * 0  # minus infinity is NaN, as in torch
    return jnp.where(x <= -3, below, jnp.where(jnp.abs(x) < 3, inside * (inside + 3) / 6, x))


def _threshold(x: jax.Array, threshold: float, value: float) -> jax.Array:
    return jnp.where(x <= threshold, jnp.asarray(value, x.dtype), x)


def _hardshrink(x: jax.Array, lambd: float = 0.5) -> jax.Array:
    return jnp.where((x >= -lambd) & (x <= lambd), jnp.zeros_like(x), x)


def _softshrink(x: jax.Array, lambd: float = 0.5) -> jax.Array:
    shrunk = jnp.where(x > lambd, x - lambd, jnp.where(x < -lambd, x + lambd, jnp.zeros_like(x)))
    return jnp.where(jnp.isnan(x), x, shrunk)


def log_sigmoid(x: jax.Array) -> jax.Array:
    """``log(sigmoid(x))`` without overflow, and with torch's gradient at 0 (one half)."""
    return -jax.nn.softplus(-x)


def _mish(x: jax.Array) -> jax.Array:
    return x * jnp.tanh(jax.nn.softplus(x))


def _glu(x: jax.Array, dim: int = -1) -> jax.Array:
    left, right = jnp.split(x, 2, dim)
    return left * jax.nn.sigmoid(right)


UNARY: dict[str, Callable[..., Any]] = {
    "celu": _celu,
    "elu": _elu,
    "gelu": _gelu,
    "glu": _glu,
    "hardshrink": _hardshrink,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "hardtanh": _hardtanh,
    "leaky_relu": lambda x, negative_slope=0.01: jnp.where(x > 0, x, x * negative_slope),
    "log_sigmoid": log_sigmoid,
    "mish": _mish,
    "relu": _relu,
    "relu6": lambda x: _hardtanh(x, 0, 6),
    "selu": lambda x: _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "silu": lambda x: x * jax.nn.sigmoid(x),
    "softplus": _softplus,
    "softshrink": _softshrink,
    "threshold": _threshold,
}
for _name, _function in UNARY.items():
    lowers(f"aten.{_name}.default")(activation(_function))


@lowers("aten.log_sigmoid_forward.default")
def _log_sigmoid_forward(call: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    dtype = out_dtype(call, 0)
    return cast(log_sigmoid(cast(x, wide(dtype))), dtype), jnp.zeros(call.out[1].shape, out_dtype(call, 1))


@lowers("aten.prelu.default", "aten._prelu_kernel.default")
def _prelu(call: Any, x: jax.Array, weight: jax.Array) -> jax.Array:
    dtype = out_dtype(call)
    if call.node.op == "aten.prelu.default" and weight.size > 1:
        weight = weight.reshape(-1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else weight
    elif call.node.op == "aten.prelu.default":
        weight = weight.reshape(())
    x, weight = cast(x, wide(dtype)), cast(weight, wide(dtype))
    return cast(jnp.where(x > 0, x, weight * x), dtype)


@lowers("aten.rrelu.default", random=True)
def _rrelu(
    call: Any,
    x: jax.Array,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> jax.Array:
    dtype = out_dtype(call)
    x = cast(x, wide(dtype))
    if training:
        slope = unit(call.key(), x.shape, dtype) * (upper - lower) + lower
        slope = cast(slope, x.dtype)
    else:
        slope = jnp.asarray((lower + upper) / 2, x.dtype)
    return cast(jnp.where(x > 0, x, lax.stop_gradient(slope) * x), dtype)


for _name, _function in {
    "sigmoid_backward": lambda g, y: g * y * (1 - y),
    "tanh_backward": lambda g, y: g * (1 - y * y),
}.items():
    lowers(f"aten.{_name}.default")(pointwise(_function))


@lowers("aten.threshold_backward.default")
def _threshold_backward(call: Any, grad: jax.Array, x: jax.Array, threshold: Any) -> jax.Array:
    return jnp.where(x <= threshold, jnp.zeros_like(grad), grad)
