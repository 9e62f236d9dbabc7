"""``llama`` in Flax NNX, in the style of the transformer of google/flax's ``examples/gemma`` (rotary positions, root-
mean-square normalisation, a gated feed-forward layer). Names of attributes follow the torch model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.flax_parts.attention import causal, rotary
from detente.workloads.flax_parts.layers import Dtypes, embedding, linear, rms_norm
from detente.workloads.flax_parts.losses import of_language_model as loss
from detente.workloads.flax_parts.self_attention import SelfAttention
from detente.workloads.flax_parts.stacked import stacked, through
from detente.workloads.llama.spec import EPSILON, inverse_frequencies
from detente.workloads.weight_tables import (
    EMBEDDING,
    LINEAR_WITHOUT_BIAS,
    SCALE,
    repeated,
    rules_of,
    self_attention,
)
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

__all__ = ["build", "loss", "weights"]


class GatedFeedForward(nnx.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, arXiv:2002.05202)."""

    def __init__(self, hidden: int, inner: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        self.gate_proj = linear(hidden, inner, dtypes, rngs, bias=False)
        self.up_proj = linear(hidden, inner, dtypes, rngs, bias=False)
        self.down_proj = linear(inner, hidden, dtypes, rngs, bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(nnx.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nnx.Module):
    def __init__(self, size: Size, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        hidden = size["hidden"]
        self.input_layernorm = rms_norm(hidden, EPSILON, dtypes, rngs)
        self.self_attn = SelfAttention(
            hidden,
            size["heads"],
            key_heads=size["key_heads"],
            bias=False,
            out_bias=False,
            dtypes=dtypes,
            rngs=rngs,
        )
        self.post_attention_layernorm = rms_norm(hidden, EPSILON, dtypes, rngs)
        self.mlp = GatedFeedForward(hidden, size["inner"], dtypes=dtypes, rngs=rngs)

    def __call__(self, x: jax.Array, seen: jax.Array, turn: tuple[jax.Array, jax.Array]) -> jax.Array:
        x = x + self.self_attn(self.input_layernorm(x), seen, turn)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nnx.Module):
    """``input_ids`` (batch, sequence) to logits (batch, sequence, vocab)."""

    def __init__(self, size: Size, *, dtypes: Dtypes, scan: bool, rngs: nnx.Rngs) -> None:
        hidden = size["hidden"]
        self.embed_tokens = embedding(size["vocab"], hidden, dtypes, rngs)
        self.layers = stacked(
            lambda rngs: Layer(size, dtypes=dtypes, rngs=rngs), size["layers"], scan=scan, rngs=rngs
        )
        self.norm = rms_norm(hidden, EPSILON, dtypes, rngs)
        self.lm_head = linear(hidden, size["vocab"], dtypes, rngs, bias=False)
        self.depth = hidden // size["heads"]
        self.scan = scan

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        x, t = self.embed_tokens(input_ids), input_ids.shape[1]
        turn = rotary(t, inverse_frequencies(self.depth), jnp.promote_types(x.dtype, jnp.float32))
        x = through(self.layers, x, causal(t), turn, scan=self.scan)
        return self.lm_head(self.norm(x))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    return Llama(size, dtypes=Dtypes(parameters, compute), scan=scan, rngs=nnx.Rngs(0))


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    names = tuple(f"self_attn.{name}_proj" for name in "qkvo")
    hidden, heads, few = size["hidden"], size["heads"], size["key_heads"]
    layer = {
        "input_layernorm": SCALE,
        **self_attention(names, "self_attn", hidden, heads, key_heads=few, bias=False, out_bias=False),
        "post_attention_layernorm": SCALE,
        "mlp.gate_proj": LINEAR_WITHOUT_BIAS,
        "mlp.up_proj": LINEAR_WITHOUT_BIAS,
        "mlp.down_proj": LINEAR_WITHOUT_BIAS,
    }
    return (
        *rules_of({"embed_tokens": EMBEDDING, "norm": SCALE}, torch="model"),
        *rules_of({"lm_head": LINEAR_WITHOUT_BIAS}),
        *repeated(layer, size["layers"], torch="model.layers", other="layers", scan=scan),
    )
