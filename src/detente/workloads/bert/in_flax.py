"""``bert`` in Flax NNX, in the style of google/flax's ``examples/lm1b`` in NNX: heads on an axis of their own, as in
``nnx.MultiHeadAttention``. Names of attributes follow the torch model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.bert.spec import EPSILON
from detente.workloads.flax_parts.layers import Dtypes, embedding, layer_norm, linear
from detente.workloads.flax_parts.losses import of_labelled_sentences as loss
from detente.workloads.flax_parts.self_attention import SelfAttention
from detente.workloads.flax_parts.stacked import stacked, through
from detente.workloads.weight_tables import EMBEDDING, LINEAR, NORM, At, repeated, rules_of, self_attention
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

__all__ = ["build", "loss", "weights"]


class Layer(nnx.Module):
    """Normalised after each half, not before it."""

    def __init__(self, size: Size, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        hidden, inner = size["hidden"], size["inner"]
        self.attention = SelfAttention(hidden, size["heads"], dtypes=dtypes, rngs=rngs)
        self.attention_norm = layer_norm(hidden, EPSILON, dtypes, rngs)
        self.intermediate = linear(hidden, inner, dtypes, rngs)
        self.output = linear(inner, hidden, dtypes, rngs)
        self.output_norm = layer_norm(hidden, EPSILON, dtypes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.attention_norm(self.attention(x) + x)
        # transformers' "gelu" is the erf form.
        y = self.output(nnx.gelu(self.intermediate(x), approximate=False))
        return self.output_norm(y + x)


class Bert(nnx.Module):
    """``input_ids`` (batch, sequence) to logits (batch, labels)."""

    def __init__(self, size: Size, *, dtypes: Dtypes, scan: bool, rngs: nnx.Rngs) -> None:
        hidden = size["hidden"]
        self.words = embedding(size["vocab"], hidden, dtypes, rngs)
        self.positions = embedding(size["positions"], hidden, dtypes, rngs)
        self.types = embedding(size["types"], hidden, dtypes, rngs)
        self.norm = layer_norm(hidden, EPSILON, dtypes, rngs)
        self.layers = stacked(
            lambda rngs: Layer(size, dtypes=dtypes, rngs=rngs), size["layers"], scan=scan, rngs=rngs
        )
        self.pooler = linear(hidden, hidden, dtypes, rngs)
        self.classifier = linear(hidden, size["labels"], dtypes, rngs)
        self.scan = scan

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        # One sentence, so every token is of the first type.
        x = self.words(input_ids) + self.types(jnp.zeros_like(input_ids))
        x = self.norm(x + self.positions(jnp.arange(input_ids.shape[1])))
        x = through(self.layers, x, scan=self.scan)
        return self.classifier(jnp.tanh(self.pooler(x[:, 0])))


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    return Bert(size, dtypes=Dtypes(parameters, compute), scan=scan, rngs=nnx.Rngs(0))


_MODEL = {
    "bert.embeddings.word_embeddings": At("words", EMBEDDING),
    "bert.embeddings.position_embeddings": At("positions", EMBEDDING),
    "bert.embeddings.token_type_embeddings": At("types", EMBEDDING),
    "bert.embeddings.LayerNorm": At("norm", NORM),
    "bert.pooler.dense": At("pooler", LINEAR),
    "classifier": LINEAR,
}


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    names = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    layer = {
        **self_attention(names, "attention", size["hidden"], size["heads"]),
        "attention.output.LayerNorm": At("attention_norm", NORM),
        "intermediate.dense": At("intermediate", LINEAR),
        "output.dense": At("output", LINEAR),
        "output.LayerNorm": At("output_norm", NORM),
    }
    layers = repeated(layer, size["layers"], torch="bert.encoder.layer", other="layers", scan=scan)
    return (*rules_of(_MODEL), *layers)
