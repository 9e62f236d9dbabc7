"""The same in Flax NNX."""

import numpy as np
import optax
from flax import nnx


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(32, 64, rngs=rngs)
        self.second = nnx.Linear(64, 64, rngs=rngs)
        self.third = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.third(nnx.relu(self.second(nnx.relu(self.first(x)))))


def loss(model, batch):
    logits = model(batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), {"logits": logits}


def make(batch=64):
    rows = {"x": np.random.randn(batch, 32), "y": np.random.randint(0, 10, batch)}
    return MLP(nnx.Rngs(0)), loss, rows
