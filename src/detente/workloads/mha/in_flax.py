"""``mha`` in Flax NNX, in the style of the attention of google/flax's ``examples/gemma`` (one projection to query,
key and value, products as einsum)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.flax_parts.attention import attend, causal
from detente.workloads.flax_parts.layers import Dtypes, linear
from detente.workloads.flax_parts.losses import of_target as loss
from detente.workloads.weight_tables import LINEAR, rules_of
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

__all__ = ["build", "loss", "weights"]


class Attention(nnx.Module):
    """Causal self-attention on x (batch, sequence, hidden); one projection to query, key and value."""

    def __init__(self, hidden: int, heads: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        self.c_attn = linear(hidden, 3 * hidden, dtypes, rngs)
        self.c_proj = linear(hidden, hidden, dtypes, rngs)
        self.heads = heads

    def __call__(self, x: jax.Array) -> jax.Array:
        b, t, h = x.shape
        q, k, v = (
            part.reshape(b, t, self.heads, h // self.heads) for part in jnp.split(self.c_attn(x), 3, axis=-1)
        )
        return self.c_proj(attend(q, k, v, causal(t)).reshape(b, t, h))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    """``scan`` changes nothing: there is one layer."""
    return Attention(size["hidden"], size["heads"], dtypes=Dtypes(parameters, compute), rngs=nnx.Rngs(0))


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    return tuple(rules_of({"c_attn": LINEAR, "c_proj": LINEAR}))
