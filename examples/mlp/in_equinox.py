"""The same in Equinox: written for one example, and vmapped."""

import equinox as eqx
import jax
import numpy as np
import optax


def loss(model, batch):
    logits = jax.vmap(model)(batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), {"logits": logits}


def make(batch=64):
    rows = {"x": np.random.randn(batch, 32), "y": np.random.randint(0, 10, batch)}
    return eqx.nn.MLP(32, 10, width_size=64, depth=2, key=jax.random.key(0)), loss, rows
