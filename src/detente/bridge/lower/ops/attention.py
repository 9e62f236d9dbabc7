"""scaled_dot_product_attention: scores and softmax in float32, zeros on rows that are wholly masked.

This is the plain form. Fused kernels replace it by choice (ours on a CPU: fused_attention.py; cuDNN's on an NVIDIA GPU:
flash_attention.py), judged against this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from detente.bridge.lower.contract import contracted
from detente.bridge.lower.dtypes import cast, is_bool, out_dtype, wide
from detente.bridge.lower.ops import flash_attention
from detente.bridge.lower.ops.fused_attention import fused_attention, is_taken
from detente.bridge.lower.ops.random import keep_mask
from detente.bridge.lower.ops.softmax import masked_softmax
from detente.bridge.lower.table import lowers


def _scores(query: jax.Array, key: jax.Array, kind: Any) -> jax.Array:
    return jnp.einsum("...ld,...sd->...ls", query, key, preferred_element_type=kind)


def _weighted(weights: jax.Array, value: jax.Array, kind: Any) -> jax.Array:
    return jnp.einsum("...ls,...sd->...ld", weights, value, preferred_element_type=kind)


def attention_scores(
    query: jax.Array, key: jax.Array, mask: jax.Array | None, is_causal: bool, scale: float | None
) -> jax.Array:
    """Scaled and masked scores (..., L, S) in the compute dtype: minus infinity where masked out."""
    kind = wide(query.dtype)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    # The scale goes to the smaller operand, as ATen's math kernel has it (it takes the root on both sides).
    scores = contracted(_scores, query, key, kind) * jnp.asarray(scale, kind)
    if is_causal:
        rows = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        columns = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
        scores = jnp.where(rows >= columns, scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if is_bool(mask.dtype) else scores + cast(mask, kind)
    return scores


def plain(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    is_causal: bool,
    scale: float | None,
    mask: jax.Array | None = None,
    dropped: Callable[[jax.Array], jax.Array] = lambda weights: weights,
) -> jax.Array:
    """(..., L, E) in the accumulation dtype; ``dropped`` is what is left of the probabilities."""
    weights = dropped(masked_softmax(attention_scores(query, key, mask, is_causal, scale), -1))
    # The second product takes the probabilities in the operands' dtype, as the fused CPU and CUDA kernels do.
    return contracted(_weighted, cast(weights, value.dtype), value, wide(value.dtype))


@lowers("aten.scaled_dot_product_attention.default", random=True)
def _attention(
    call: Any,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_mask: jax.Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> jax.Array:
    dtype = out_dtype(call)
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key, value = (jnp.repeat(t, query.shape[-3] // t.shape[-3], axis=-3) for t in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if flash_attention.is_taken(query, key, value, attn_mask, dropout_p, is_causal):
        found = flash_attention.flash_attention(query, key, value, is_causal, factor)
        if found is not None:
            return cast(found, dtype)
    if is_taken(query, key, value, attn_mask, dropout_p):
        keep = keep_mask(call.key(), dropout_p, (*query.shape[:-1], key.shape[-2])) if dropout_p > 0 else None
        return fused_attention(query, key, value, keep, is_causal, factor, dropout_p)

    def dropped(weights: jax.Array) -> jax.Array:
        if dropout_p <= 0:
            return weights
        keep = keep_mask(call.key(), dropout_p, weights.shape)
        return jnp.where(keep, weights / (1 - dropout_p), 0) if dropout_p < 1 else jnp.zeros_like(weights)

    return cast(plain(query, key, value, is_causal, scale, attn_mask, dropped), dtype)


@lowers("aten._scaled_dot_product_flash_attention_for_cpu.default", random=True)
def _flash_for_cpu(
    call: Any,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: jax.Array | None = None,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    from jax.scipy.special import logsumexp

    scores = attention_scores(query, key, attn_mask, is_causal, scale)
    weights = masked_softmax(scores, -1)
    result = jnp.einsum("...ls,...sd->...ld", cast(weights, value.dtype), value)
    return cast(result, out_dtype(call, 0)), cast(logsumexp(scores, -1), out_dtype(call, 1))
