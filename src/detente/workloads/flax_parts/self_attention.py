"""A self-attention layer whose projections have the heads on an axis of their own, as ``nnx.MultiHeadAttention``."""

from __future__ import annotations

import jax
from flax import nnx

from detente.workloads.flax_parts.attention import attend, rotate
from detente.workloads.flax_parts.layers import Dtypes, from_heads, to_heads


class SelfAttention(nnx.Module):
    """x (batch, positions, hidden) to the same shape.

    key_heads  heads of keys and values, each serving a group of queries; as many as heads when None
    bias       of the projections to query, key and value; ``out_bias`` of the one back
    scale      of the products, 1 / sqrt(hidden / heads) when None
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        *,
        key_heads: int | None = None,
        bias: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        dtypes: Dtypes,
        rngs: nnx.Rngs,
    ) -> None:
        each, key_heads = hidden // heads, key_heads or heads
        self.query = to_heads(hidden, heads, each, dtypes, rngs, bias=bias)
        self.key = to_heads(hidden, key_heads, each, dtypes, rngs, bias=bias)
        self.value = to_heads(hidden, key_heads, each, dtypes, rngs, bias=bias)
        self.out = from_heads(heads, each, hidden, dtypes, rngs, bias=out_bias)
        self.scale = scale

    def __call__(
        self, x: jax.Array, seen: jax.Array | None = None, turn: tuple[jax.Array, jax.Array] | None = None
    ) -> jax.Array:
        """``seen`` (positions, positions) bool, ``turn`` the angles of ``attention.rotary``."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        if turn is not None:
            # The angles are wider than the operands of products may be.
            q, k = (rotate(part, turn).astype(v.dtype) for part in (q, k))
        return self.out(attend(q, k, v, seen, scale=self.scale))
