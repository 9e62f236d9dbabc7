"""Losses in at least float32, and the outputs that come with them: what a definition offers as ``loss``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

Arrays = dict[str, jax.Array]


def label_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy of ``logits`` (..., classes) for ``labels`` (...), whole numbers."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_p = jax.nn.log_softmax(wide, axis=-1)
    return -jnp.mean(jnp.take_along_axis(log_p, labels[..., None], axis=-1))


def next_token_loss(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Position t of ``logits`` (batch, sequence, vocab) predicts token t + 1; the mean over batch x (sequence - 1)."""
    return label_loss(logits[:, :-1], tokens[:, 1:])


def of_target(module: nnx.Module, batch: Arrays) -> tuple[jax.Array, Arrays]:
    """Mean squared error of ``x``'s result against ``target``."""
    y = module(batch["x"])
    return jnp.mean(jnp.square(y - batch["target"])), {"y": y}


def of_language_model(module: nnx.Module, batch: Arrays) -> tuple[jax.Array, Arrays]:
    """The next token at every position, and the logits (batch, sequence, vocab)."""
    logits = module(batch["input_ids"])
    return next_token_loss(logits, batch["input_ids"]), {"logits": logits}


def of_labelled_sentences(module: nnx.Module, batch: Arrays) -> tuple[jax.Array, Arrays]:
    """The label of every sentence, and the logits (batch, labels)."""
    logits = module(batch["input_ids"])
    return label_loss(logits, batch["labels"]), {"logits": logits}


def of_labelled_pictures(module: nnx.Module, batch: Arrays) -> tuple[jax.Array, Arrays]:
    """The label of every picture, and the logits (batch, labels)."""
    # The prepared batch is channels first. Turning 3 channels is the one layout change, and it is inside the clock.
    logits = module(jnp.transpose(batch["images"], (0, 2, 3, 1)))
    return label_loss(logits, batch["labels"]), {"logits": logits}
