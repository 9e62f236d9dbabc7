"""The same in Flax Linen: the model is what `init` gave."""

import flax.linen as nn
import jax
import numpy as np
import optax


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(64)(x))
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(10)(x)


def loss(variables, batch):
    logits = MLP().apply(variables, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), {"logits": logits}


def make(batch=64):
    rows = {"x": np.random.randn(batch, 32).astype("float32"), "y": np.random.randint(0, 10, batch)}
    return MLP().init(jax.random.key(0), rows["x"]), loss, rows
