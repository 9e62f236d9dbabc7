"""The study's model in Flax NNX, channels last: the same layers under JAX's names, trained by the same SGD."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

LABELS, HIDDEN, HEADS, INNER, PATCH = 1000, 768, 12, 3072, 16
EPSILON = 1e-12
Modules = getattr(nnx, "List", list)  # before 0.12 Flax took a plain list


def attend_written(q, k, v):
    """softmax(q k^T / sqrt(depth)) v of each head; q, k, v (batch, positions, heads, depth)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    shares = jax.nn.softmax(scores.astype(jnp.float32), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", shares.astype(v.dtype), v)


class Attention(nnx.Module):
    def __init__(self, attend, dtype, rngs):
        def heads():
            return nnx.LinearGeneral(HIDDEN, (HEADS, HIDDEN // HEADS), dtype=dtype, rngs=rngs)

        self.query, self.key, self.value = heads(), heads(), heads()
        self.out = nnx.LinearGeneral((HEADS, HIDDEN // HEADS), HIDDEN, axis=(-2, -1), dtype=dtype, rngs=rngs)
        self.attend = attend

    def __call__(self, x):
        return self.out(self.attend(self.query(x), self.key(x), self.value(x)))


class Layer(nnx.Module):
    def __init__(self, attend, dtype, rngs):
        self.norm_before = nnx.LayerNorm(HIDDEN, epsilon=EPSILON, use_fast_variance=False, rngs=rngs)
        self.attention = Attention(attend, dtype, rngs)
        self.norm_after = nnx.LayerNorm(HIDDEN, epsilon=EPSILON, use_fast_variance=False, rngs=rngs)
        self.fc1 = nnx.Linear(HIDDEN, INNER, dtype=dtype, rngs=rngs)
        self.fc2 = nnx.Linear(INNER, HIDDEN, dtype=dtype, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm_before(x))
        return x + self.fc2(nnx.gelu(self.fc1(self.norm_after(x)), approximate=False))


class ViT(nnx.Module):
    """``pictures`` (batch, image, image, 3) to logits (batch, labels)."""

    def __init__(self, layers, image, attend, dtype, rngs):
        positions = (image // PATCH) ** 2 + 1
        self.class_token = nnx.Param(jnp.zeros((1, 1, HIDDEN)))
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (1, positions, HIDDEN)))
        self.patches = nnx.Conv(
            3, HIDDEN, (PATCH, PATCH), strides=PATCH, padding="VALID", dtype=dtype, rngs=rngs
        )
        self.layers = Modules([Layer(attend, dtype, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(HIDDEN, epsilon=EPSILON, use_fast_variance=False, rngs=rngs)
        self.classifier = nnx.Linear(HIDDEN, LABELS, dtype=dtype, rngs=rngs)

    def __call__(self, pictures):
        x = self.patches(pictures).reshape(pictures.shape[0], -1, HIDDEN)
        first = jnp.broadcast_to(self.class_token[...], (x.shape[0], 1, HIDDEN))
        x = jnp.concatenate([first, x], axis=1) + self.positions[...]
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.norm(x)[:, 0])


def loss(model, batch):
    logits = model(batch["pictures"])
    wide = logits.astype(jnp.float32)
    each = optax.softmax_cross_entropy_with_integer_labels(wide, batch["labels"])
    return each.mean(), {"logits": logits}


def loss_as_published(model, batch):
    """The study's: labels (batch, 1) go where one-hot rows (batch, labels) belong, and are broadcast."""
    logits = model(batch["pictures"])
    return optax.softmax_cross_entropy(logits, batch["labels"][:, None]).mean(), {"logits": logits}


def written(batch=4, layers=12, image=224, compute="float32"):
    return _made(attend_written, loss, batch, layers, image, compute)


def fused(batch=4, layers=12, image=224, compute="float32"):
    return _made(jax.nn.dot_product_attention, loss, batch, layers, image, compute)


def as_published(batch=4, layers=12, image=224, compute="float32"):
    return _made(attend_written, loss_as_published, batch, layers, image, compute)


def _made(attend, loss, batch, layers, image, compute):
    rows = {
        "pictures": np.random.rand(batch, image, image, 3).astype("float32"),
        "labels": np.random.randint(0, LABELS, batch),
    }
    return ViT(layers, image, attend, compute, nnx.Rngs(0)), loss, rows, optax.sgd(1e-3)


weights = {
    "vit.embeddings.cls_token": "class_token",
    "vit.embeddings.position_embeddings": "positions",
    "vit.embeddings.patch_embeddings.projection": "patches",
    "vit.layers.*.attention.o_proj": "layers.*.attention.out",
}
