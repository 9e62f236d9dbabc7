"""One unmodified torch module over a mesh of devices: every axis of the mesh by a rule of one line.

    python examples/shard_over_a_mesh.py

Runs on eight virtual CPU devices; take the first line out to run on the devices that are there.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import optax
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from torch import nn

import detente
from detente.bridge.random.keys import step_key

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.2), nn.Linear(128, 8))
x, y = torch.randn(64, 32), torch.randn(64, 8)
f = detente.functional(model, lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), (x, y))
optimizer = optax.adamw(1e-2)

# Tensor parallel: the first layer by its outputs, the second by its inputs. The batch by the other axis.
RULES = {"0.weight": P("model", None), "0.bias": P("model"), "3.weight": P(None, "model")}


def train(devices, shape):
    mesh = jax.make_mesh(shape, ("data", "model"), (AxisType.Auto,) * 2, devices=jax.devices()[:devices])
    params = {n: jax.device_put(p, NamedSharding(mesh, RULES.get(n, P()))) for n, p in f.params.items()}
    batch = jax.device_put((x.numpy(), y.numpy()), NamedSharding(mesh, P("data")))

    @jax.jit
    def step(params, state, key):
        value, gradient = jax.value_and_grad(f)(params, batch, key=key)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    state = jax.jit(optimizer.init)(params)
    for count in range(20):
        params, state, value = step(params, state, step_key(0, count))
    return float(value), params


for devices, shape in ((1, (1, 1)), (8, (8, 1)), (8, (4, 2)), (8, (1, 8))):
    value, params = train(devices, shape)
    print(f"{shape[0]} x {shape[1]}: loss {value:.6f}")
print("where the first weight lies on the last mesh:")
jax.debug.visualize_array_sharding(params["0.weight"])
