"""``gpt2`` in Flax NNX, in the style of the transformer of google/flax's ``examples/gemma``. Names of attributes follow
the torch model, so the two can be read side by side. Its attention and its feed-forward layer are those of ``mha`` and
``ffn``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.ffn.in_flax import FeedForward
from detente.workloads.flax_parts.layers import Dtypes, embedding, layer_norm, tied_logits
from detente.workloads.flax_parts.losses import of_language_model as loss
from detente.workloads.flax_parts.stacked import stacked, through
from detente.workloads.gpt2.spec import EPSILON
from detente.workloads.mha.in_flax import Attention
from detente.workloads.weight_tables import CONV1D, EMBEDDING, NORM, repeated, rules_of
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

__all__ = ["build", "loss", "weights"]


class Block(nnx.Module):
    def __init__(self, hidden: int, heads: int, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        self.ln_1 = layer_norm(hidden, EPSILON, dtypes, rngs)
        self.attn = Attention(hidden, heads, dtypes=dtypes, rngs=rngs)
        self.ln_2 = layer_norm(hidden, EPSILON, dtypes, rngs)
        # transformers' "gelu_new" is the tanh form.
        self.mlp = FeedForward(hidden, 4 * hidden, dtypes=dtypes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nnx.Module):
    """``input_ids`` (batch, sequence) to logits (batch, sequence, vocab)."""

    def __init__(self, size: Size, *, dtypes: Dtypes, scan: bool, rngs: nnx.Rngs) -> None:
        hidden, heads = size["hidden"], size["heads"]
        self.wte = embedding(size["vocab"], hidden, dtypes, rngs)
        self.wpe = embedding(size["positions"], hidden, dtypes, rngs)
        self.h = stacked(
            lambda rngs: Block(hidden, heads, dtypes=dtypes, rngs=rngs), size["layers"], scan=scan, rngs=rngs
        )
        self.ln_f = layer_norm(hidden, EPSILON, dtypes, rngs)
        self.scan = scan
        self.compute = dtypes.compute

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        x = self.wte(input_ids) + self.wpe(jnp.arange(input_ids.shape[1]))
        x = self.ln_f(through(self.h, x, scan=self.scan))
        return tied_logits(x, self.wte, self.compute)


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    return GPT2(size, dtypes=Dtypes(parameters, compute), scan=scan, rngs=nnx.Rngs(0))


# No layout changes: transformers' Conv1D keeps (in, out), as Flax does.
_BLOCK = {
    "ln_1": NORM,
    "attn.c_attn": CONV1D,
    "attn.c_proj": CONV1D,
    "ln_2": NORM,
    "mlp.c_fc": CONV1D,
    "mlp.c_proj": CONV1D,
}


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    rules = rules_of({"wte": EMBEDDING, "wpe": EMBEDDING, "ln_f": NORM}, torch="transformer")
    return (*rules, *repeated(_BLOCK, size["layers"], torch="transformer.h", other="h", scan=scan))
