"""The same in Haiku: the model is what `init` of the transformed function gave."""

import haiku as hk
import jax
import numpy as np
import optax


def forward(x):
    return hk.nets.MLP([64, 64, 10])(x)


network = hk.without_apply_rng(hk.transform(forward))


def loss(params, batch):
    logits = network.apply(params, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), {"logits": logits}


def make(batch=64):
    rows = {"x": np.random.randn(batch, 32).astype("float32"), "y": np.random.randint(0, 10, batch)}
    return network.init(jax.random.key(0), rows["x"]), loss, rows
