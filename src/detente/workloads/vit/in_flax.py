"""``vit`` in Flax NNX, in the style of the Vision Transformer of Flax's and JAX's tutorials in NNX (jax-ai-stack,
"Vision Transformer with JAX"): patches by a convolution, the class token put before them. Channels last. Names of
attributes follow the torch model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from detente.workloads.flax_parts.layers import Dtypes, layer_norm, linear
from detente.workloads.flax_parts.losses import of_labelled_pictures as loss
from detente.workloads.flax_parts.self_attention import SelfAttention
from detente.workloads.flax_parts.stacked import stacked, through
from detente.workloads.vit.spec import EPSILON, tokens
from detente.workloads.weight_tables import (
    CONVOLUTION,
    LINEAR,
    NORM,
    At,
    parameter,
    repeated,
    rules_of,
    self_attention,
)
from detente.workloads.weights import WeightRule
from detente.workloads.workload import Size

__all__ = ["build", "loss", "weights"]


class Layer(nnx.Module):
    def __init__(self, size: Size, *, dtypes: Dtypes, rngs: nnx.Rngs) -> None:
        hidden, inner = size["hidden"], size["inner"]
        self.layernorm_before = layer_norm(hidden, EPSILON, dtypes, rngs)
        self.attention = SelfAttention(hidden, size["heads"], dtypes=dtypes, rngs=rngs)
        self.layernorm_after = layer_norm(hidden, EPSILON, dtypes, rngs)
        self.fc1 = linear(hidden, inner, dtypes, rngs)
        self.fc2 = linear(inner, hidden, dtypes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.layernorm_before(x))
        # transformers' "gelu" is the erf form.
        return x + self.fc2(nnx.gelu(self.fc1(self.layernorm_after(x)), approximate=False))


class ViT(nnx.Module):
    """``images`` (batch, image, image, 3) to logits (batch, labels)."""

    def __init__(self, size: Size, *, dtypes: Dtypes, scan: bool, rngs: nnx.Rngs) -> None:
        hidden, patch = size["hidden"], (size["patch"], size["patch"])
        stored = dtypes.parameters
        self.cls_token = nnx.Param(jnp.zeros((1, 1, hidden), stored))
        self.position_embeddings = nnx.Param(jnp.zeros((1, tokens(size), hidden), stored))
        self.projection = nnx.Conv(
            3, hidden, patch, strides=patch, padding="VALID", rngs=rngs, **dtypes.of_products()
        )
        self.layers = stacked(
            lambda rngs: Layer(size, dtypes=dtypes, rngs=rngs), size["layers"], scan=scan, rngs=rngs
        )
        self.layernorm = layer_norm(hidden, EPSILON, dtypes, rngs)
        self.classifier = linear(hidden, size["labels"], dtypes, rngs)
        self.scan = scan

    def __call__(self, images: jax.Array) -> jax.Array:
        patches = self.projection(images)
        b, hidden = patches.shape[0], patches.shape[-1]
        first = jnp.broadcast_to(self.cls_token[...], (b, 1, hidden))
        x = jnp.concatenate([first, patches.reshape(b, -1, hidden)], axis=1) + self.position_embeddings[...]
        x = self.layernorm(through(self.layers, x, scan=self.scan))
        return self.classifier(x[:, 0])


def build(size: Size, *, parameters: str, compute: str, scan: bool = False) -> nnx.Module:
    return ViT(size, dtypes=Dtypes(parameters, compute), scan=scan, rngs=nnx.Rngs(0))


_MODEL = {
    "vit.embeddings": At("", (*parameter("cls_token"), *parameter("position_embeddings"))),
    "vit.embeddings.patch_embeddings.projection": At("projection", CONVOLUTION),
    "vit.layernorm": At("layernorm", NORM),
    "classifier": LINEAR,
}


def weights(size: Size, scan: bool) -> tuple[WeightRule, ...]:
    names = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj")
    layer = {
        "layernorm_before": NORM,
        **self_attention(names, "attention", size["hidden"], size["heads"]),
        "layernorm_after": NORM,
        "mlp.fc1": At("fc1", LINEAR),
        "mlp.fc2": At("fc2", LINEAR),
    }
    layers = repeated(layer, size["layers"], torch="vit.layers", other="layers", scan=scan)
    return (*rules_of(_MODEL), *layers)
