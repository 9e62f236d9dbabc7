"""The same in Keras 3, on its JAX backend (which detente chooses)."""

import keras
import numpy as np


def loss(model, batch):
    logits = model(batch["x"], training=True)
    each = keras.losses.sparse_categorical_crossentropy(batch["y"], logits, from_logits=True)
    return keras.ops.mean(each), {"logits": logits}


def make(batch=64):
    model = keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    rows = {"x": np.random.randn(batch, 32).astype("float32"), "y": np.random.randint(0, 10, batch)}
    return model, loss, rows
