"""Attention written out, its masks, and rotary positions.

Written out because ``jax.nn.dot_product_attention`` and ``nnx.dot_product_attention`` take the softmax in float32 even
where the inputs are float64, and then the proof in float64 could only hold to 1e-8.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array | None = None, *, scale: float | None = None
) -> jax.Array:
    """softmax(q k^T scale) v for each head, the softmax in at least float32.

    q      (batch, queries, heads, depth)
    k, v   (batch, keys, key heads, depth). Where there are fewer of them, each serves a group of neighbouring heads
           (Ainslie et al., arXiv:2305.13245), as an axis of q: nothing is repeated
    seen   (queries, keys) bool: which keys a query sees; all when None
    scale  1 / sqrt(depth) when None

    Returns (batch, queries, heads, depth).
    """
    b, t, heads, depth = q.shape
    grouped = k.shape[2] != heads
    if grouped:
        q = q.reshape(b, t, k.shape[2], heads // k.shape[2], depth)
    logits = jnp.einsum("btkgd,bskd->bkgts" if grouped else "btnd,bsnd->bnts", q, k)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if scale != 1.0:
        logits = logits * (depth**-0.5 if scale is None else scale)
    if seen is not None:
        logits = jnp.where(seen, logits, jnp.finfo(logits.dtype).min)
    shares = jax.nn.softmax(logits, axis=-1).astype(v.dtype)
    mixed = jnp.einsum("bkgts,bskd->btkgd" if grouped else "bnts,bsnd->btnd", shares, v)
    return mixed.reshape(b, t, heads, depth)


def causal(positions: int, window: int | None = None) -> jax.Array:
    """(positions, positions) bool: a query sees itself and what is before it; of those the last ``window``."""
    seen = jnp.tril(jnp.ones((positions, positions), bool))
    return seen if window is None else seen & ~jnp.tril(seen, -window)


def rotary(positions: int, inverse: np.ndarray, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of every position at each of the ``inverse`` frequencies, (positions, 2 x frequencies) in
    ``dtype``: both halves of a head turn by the same angles, as in Llama's checkpoints."""
    at = jnp.arange(positions, dtype=dtype)[:, None] * jnp.asarray(inverse, dtype)
    angles = jnp.concatenate([at, at], axis=-1)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, turn: tuple[jax.Array, jax.Array]) -> jax.Array:
    """x (batch, positions, heads, depth) turned by its position (Su et al., arXiv:2104.09864), in the wider of the two
    dtypes."""
    cos, sin = (part[:, None, :] for part in turn)
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-second, first], axis=-1) * sin
