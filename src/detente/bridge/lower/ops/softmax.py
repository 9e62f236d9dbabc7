"""softmax and its family, computed in float32 for half precision and rounded once.

``softmax`` and ``log_sum_exp`` carry their own derivative, so that the backward pass keeps one array (the
probabilities, or the logits) and not the chain of intermediate ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.dtypes import cast, is_complex, is_float, out_dtype, wide
from detente.bridge.lower.table import lowers


def _shifted(x: jax.Array, axis: int) -> jax.Array:
    top = jnp.max(x, axis, keepdims=True, initial=-jnp.inf)
    return x - top


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def softmax(x: jax.Array, axis: int) -> jax.Array:
    """Softmax of a float array; a row that is wholly minus infinity is NaN, as torch's ``softmax`` has it."""
    weights = jnp.exp(_shifted(x, axis))
    return weights / jnp.sum(weights, axis, keepdims=True)


@softmax.defjvp
def _softmax_jvp(axis: int, primals: Any, tangents: Any) -> Any:
    y = softmax(primals[0], axis)
    (t,) = tangents
    return y, y * (t - jnp.sum(y * t, axis, keepdims=True))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def masked_softmax(x: jax.Array, axis: int) -> jax.Array:
    """Softmax that gives zeros where a row is wholly minus infinity (torch's ``_safe_softmax``: attention)."""
    top = jnp.max(x, axis, keepdims=True, initial=-jnp.inf)
    weights = jnp.exp(x - jnp.where(top == -jnp.inf, 0, top))
    total = jnp.sum(weights, axis, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)


@masked_softmax.defjvp
def _masked_softmax_jvp(axis: int, primals: Any, tangents: Any) -> Any:
    y = masked_softmax(primals[0], axis)
    (t,) = tangents
    return y, y * (t - jnp.sum(y * t, axis, keepdims=True))


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def log_sum_exp(x: jax.Array, axis: int | tuple[int, ...], keepdims: bool = False) -> jax.Array:
    """``log(sum(exp(x)))`` over ``axis``; minus infinity for a row of minus infinities. The exponentials are
    recomputed in the backward pass: one array of the size of ``x`` less to keep."""
    top = jnp.max(x, axis, keepdims=True, initial=-jnp.inf)
    top = lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    total = jnp.log(jnp.sum(jnp.exp(x - top), axis, keepdims=True)) + top
    return total if keepdims else jnp.squeeze(total, axis)


@log_sum_exp.defjvp
def _log_sum_exp_jvp(axis: Any, keepdims: bool, primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    kept = log_sum_exp(x, axis, True)
    # NaN stays: so is every gradient of the row
    weights = jnp.exp(x - jnp.where(jnp.isneginf(kept), 0, kept))
    value = kept if keepdims else jnp.squeeze(kept, axis)
    return value, jnp.sum(weights * t, axis, keepdims=keepdims)


def log_total(x: jax.Array, axis: int, keepdims: bool = False) -> jax.Array:
    """What ``log(softmax(x))`` takes off: ``log_sum_exp``, but NaN with NaN gradients for a row with plus infinity."""
    total = log_sum_exp(x, axis, keepdims)
    return total * jnp.where(jnp.isposinf(total), jnp.nan, 1).astype(total.dtype)


def log_softmax(x: jax.Array, axis: int) -> jax.Array:
    """``log(softmax(x))`` without the loss of small probabilities."""
    return x - log_total(x, axis, True)


def _over(function: Any) -> Any:
    def lower(call: Any, x: jax.Array, dim: int, *_: Any, **__: Any) -> jax.Array:
        dtype = out_dtype(call)
        # `dtype=` casts before the softmax, and half_to_float does the same inside the kernel.
        x = cast(x, wide(dtype))
        return cast(function(x, dim % x.ndim), dtype) if x.ndim else cast(function(x[None], 0)[0], dtype)

    return lower


lowers("aten.softmax.int", "aten._softmax.default")(_over(softmax))
lowers("aten._safe_softmax.default")(_over(masked_softmax))
lowers("aten.log_softmax.int", "aten._log_softmax.default")(_over(log_softmax))


@lowers("aten.logsumexp.default", "aten.special_logsumexp.default")
def _logsumexp(call: Any, x: jax.Array, dim: Any, keepdim: bool = False) -> jax.Array:
    dtype = out_dtype(call)
    x = cast(x, wide(dtype) if is_float(dtype) else dtype)
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if is_complex(dtype):
        x = x.reshape(1) if x.ndim == 0 else x
        top = lax.stop_gradient(jnp.max(jnp.real(x), dims, keepdims=True)) if x.size else 0
        total = jnp.log(jnp.sum(jnp.exp(x - top), dims, keepdims=True)) + top
        return total.reshape(call.out.shape)
    if x.ndim == 0:
        return cast(x, dtype)
    return cast(log_sum_exp(x, tuple(d % x.ndim for d in dims) or tuple(range(x.ndim)), keepdim), dtype)


@lowers("aten._softmax_backward_data.default")
def _softmax_backward(call: Any, grad: jax.Array, y: jax.Array, dim: int, input_dtype: Any) -> jax.Array:
    dtype = out_dtype(call)
    grad, y = cast(grad, wide(dtype)), cast(y, wide(dtype))
    return cast(y * (grad - jnp.sum(y * grad, dim, keepdims=True)), dtype)


@lowers("aten._log_softmax_backward_data.default")
def _log_softmax_backward(call: Any, grad: jax.Array, y: jax.Array, dim: int, input_dtype: Any) -> jax.Array:
    dtype = out_dtype(call)
    grad, y = cast(grad, wide(dtype)), cast(y, wide(dtype))
    return cast(grad - jnp.exp(y) * jnp.sum(grad, dim, keepdims=True), dtype)
