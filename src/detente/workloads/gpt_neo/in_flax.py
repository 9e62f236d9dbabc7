"""``gpt_neo`` in Flax NNX, in the style of the transformer of google/flax's ``examples/gemma``, whose layers also see
everything before them and a window of it in turns. Names of attributes follow the torch model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.ffn.in_flax import FeedForward
from detente.workloads.flax_parts.attention import causal
from detente.workloads.flax_parts.layers import Dtypes, embedding, layer_norm, tied_logits
from detente.workloads.flax_parts.losses import of_language_model as loss
from detente.workloads.flax_parts.self_attention import SelfAttention
from detente.workloads.flax_parts.stacked import stacked, through
from detente.workloads.gpt_neo.spec import EPSILON
from detente.workloads.weight_tables import EMBEDDING, LINEAR, NORM, repeated, rules_of, self_attention
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

__all__ = ["build", "loss", "weights"]


class Block(nnx.Module):
    def __init__(self, hidden: int, heads: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        self.ln_1 = layer_norm(hidden, EPSILON, dtypes, rngs)
        # GPT-Neo does not divide by the root of the width of a head.
        self.attn = SelfAttention(hidden, heads, bias=False, scale=1.0, dtypes=dtypes, rngs=rngs)
        self.ln_2 = layer_norm(hidden, EPSILON, dtypes, rngs)
        # transformers' "gelu_new" is the tanh form.
        self.mlp = FeedForward(hidden, 4 * hidden, dtypes=dtypes, rngs=rngs)

    def __call__(self, x: jax.Array, seen: jax.Array) -> jax.Array:
        x = x + self.attn(self.ln_1(x), seen)
        return x + self.mlp(self.ln_2(x))


class Pair(nnx.Module):
    """A layer that sees everything before it, and one that sees a window: what repeats."""

    def __init__(self, hidden: int, heads: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        self.everything = Block(hidden, heads, dtypes=dtypes, rngs=rngs)
        self.window = Block(hidden, heads, dtypes=dtypes, rngs=rngs)

    def __call__(self, x: jax.Array, before: jax.Array, near: jax.Array) -> jax.Array:
        return self.window(self.everything(x, before), near)


class GPTNeo(nnx.Module):
    """``input_ids`` (batch, sequence) to logits (batch, sequence, vocab)."""

    def __init__(self, size: Size, *, dtypes: Dtypes, scan: bool, rngs: nnx.Rngs) -> None:
        hidden, heads = size["hidden"], size["heads"]
        self.wte = embedding(size["vocab"], hidden, dtypes, rngs)
        self.wpe = embedding(size["positions"], hidden, dtypes, rngs)
        self.pairs = stacked(
            lambda rngs: Pair(hidden, heads, dtypes=dtypes, rngs=rngs),
            size["layers"] // 2,
            scan=scan,
            rngs=rngs,
        )
        self.ln_f = layer_norm(hidden, EPSILON, dtypes, rngs)
        self.width = size["window"]
        self.scan = scan
        self.compute = dtypes.compute

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        t = input_ids.shape[1]
        x = self.wte(input_ids) + self.wpe(jnp.arange(t))
        x = through(self.pairs, x, causal(t), causal(t, self.width), scan=self.scan)
        return tied_logits(self.ln_f(x), self.wte, self.compute)


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    """``scan`` goes over pairs of layers."""
    return GPTNeo(size, dtypes=Dtypes(parameters, compute), scan=scan, rngs=nnx.Rngs(0))


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    names = tuple(f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out"))
    block = {
        "ln_1": NORM,
        **self_attention(names, "attn", size["hidden"], size["heads"], bias=False),
        "ln_2": NORM,
        "mlp.c_fc": LINEAR,
        "mlp.c_proj": LINEAR,
    }
    model = {"wte": EMBEDDING, "wpe": EMBEDDING, "ln_f": NORM}
    turns = ("everything", "window")
    return (
        *rules_of(model, torch="transformer"),
        *repeated(block, size["layers"], torch="transformer.h", other="pairs", scan=scan, members=turns),
    )
