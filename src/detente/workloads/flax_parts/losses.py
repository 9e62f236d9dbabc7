"""Losses in at least float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def label_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy of ``logits`` (..., classes) for ``labels`` (...), whole numbers."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_p = jax.nn.log_softmax(wide, axis=-1)
    return -jnp.mean(jnp.take_along_axis(log_p, labels[..., None], axis=-1))


def next_token_loss(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Position t of ``logits`` (batch, sequence, vocab) predicts token t + 1; the mean over batch x (sequence - 1)."""
    return label_loss(logits[:, :-1], tokens[:, 1:])
