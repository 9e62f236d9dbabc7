"""The gradient of every example by itself, of an unmodified torch module: detente.functional, jax.grad and jax.vmap.

    python examples/per_example_gradients.py

Finds the mislabelled examples of a small data set: after training, theirs are the longest gradients.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import torch
from torch import nn

import detente

generator = torch.Generator().manual_seed(0)
x = torch.randn(200, 2, generator=generator)
labels = (x[:, 0] > x[:, 1]).float()
wrong = torch.randperm(200, generator=generator)[:5].sort().values
labels[wrong] = 1 - labels[wrong]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))


def loss(model, batch):
    x, labels = batch
    return nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(-1), labels)


whole = detente.functional(model, loss, (x, labels))
data = (x.numpy(), labels.numpy())
optimizer = optax.adam(0.02)


@jax.jit
def train(params):
    def update(carry, _):
        params, state = carry
        value, gradient = jax.value_and_grad(whole)(params, data)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), value

    (params, _), values = jax.lax.scan(update, (params, optimizer.init(params)), length=150)
    return params, values


params, values = train(whole.params)
print(f"loss {values[0]:.3f} -> {values[-1]:.3f}")

one = detente.functional(model, loss, (x[:1], labels[:1]))  # a batch of one example, mapped over all of them
each = jax.jit(jax.vmap(jax.grad(one), in_axes=(None, 0)))(params, (data[0][:, None], data[1][:, None]))
print("gradients:", {name: array.shape for name, array in each.items()})

lengths = jnp.sqrt(sum(jnp.sum(g.reshape(200, -1) ** 2, axis=1) for g in each.values()))
longest = jnp.sort(jnp.argsort(-lengths)[:5])
print("longest gradients:", *longest.tolist())
print("mislabelled:      ", *wrong.tolist())
