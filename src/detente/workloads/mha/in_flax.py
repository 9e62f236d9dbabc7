"""``mha`` in Flax NNX, in the style of the attention of google/flax's ``examples/gemma`` (one projection to query,
key and value, products as einsum)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size


class Attention(nnx.Module):
    """Causal self-attention on x (batch, sequence, hidden); one projection to query, key and value."""

    def __init__(self, hidden: int, heads: int, *, parameters: str, compute: str, rngs: nnx.Rngs) -> None:
        dtypes = {"dtype": jnp.dtype(compute), "param_dtype": jnp.dtype(parameters)}
        self.c_attn = nnx.Linear(hidden, 3 * hidden, rngs=rngs, **dtypes)
        self.c_proj = nnx.Linear(hidden, hidden, rngs=rngs, **dtypes)
        self.heads = heads

    def __call__(self, x: jax.Array) -> jax.Array:
        b, t, h = x.shape
        q, k, v = (
            part.reshape(b, t, self.heads, h // self.heads) for part in jnp.split(self.c_attn(x), 3, axis=-1)
        )
        # Written out: jax.nn.dot_product_attention takes its softmax in float32 even where the inputs are
        # float64, and then the proof in float64 could only hold to 1e-8.
        logits = jnp.einsum("btnd,bsnd->bnts", q, k)
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32)) * (h // self.heads) ** -0.5
        seen = jnp.tril(jnp.ones((t, t), bool))
        shares = jax.nn.softmax(jnp.where(seen, logits, jnp.finfo(logits.dtype).min), axis=-1)
        mixed = jnp.einsum("bnts,bsnd->btnd", shares.astype(v.dtype), v)
        return self.c_proj(mixed.reshape(b, t, h))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    """``scan`` changes nothing: there is one layer."""
    return Attention(size["hidden"], size["heads"], parameters=parameters, compute=compute, rngs=nnx.Rngs(0))


def loss(module: nnx.Module, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean squared error against ``target``."""
    y = module(batch["x"])
    return jnp.mean(jnp.square(y - batch["target"])), {"y": y}


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    return tuple(
        rule
        for layer in ("c_attn", "c_proj")
        for rule in (
            WeightRule(f"{layer}.weight", (layer, "kernel"), "transposed"),
            WeightRule(f"{layer}.bias", (layer, "bias")),
        )
    )
