"""Run by test_mesh.py in processes of their own: what a mesh of virtual CPU devices computes, as one JSON line.

``python mesh_runs.py train`` trains one unmodified GPT-2 with dropout on every mesh; ``python mesh_runs.py
product`` multiplies 8192 x 8192 matrices on a 4 x 2 mesh and draws where the parts lie.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys

import jax
import numpy as np
import optax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import detente
from detente.bridge.lower.precision import x64
from detente.bridge.random.keys import step_key

STEPS, BATCH, LENGTH = 4, 8, 24
# Column and row parallel products as Megatron-LM cuts them: the first of each pair by its outputs, the second by
# its inputs, so that one all-reduce follows the pair. GPT-2's Conv1D stores (inputs, outputs).
MEGATRON = (
    (r"attn\.c_attn\.(weight|bias)$", -1),
    (r"mlp\.c_fc\.(weight|bias)$", -1),
    (r"(attn|mlp)\.c_proj\.weight$", 0),
    (r"wte\.weight$", 0),
)


def replicated(name, shape, devices):
    return PartitionSpec()


def largest_axis(name, shape, devices):
    axes = [a for a in np.argsort(shape)[::-1] if shape[a] % devices == 0]
    return cut(shape, int(axes[0])) if axes else PartitionSpec()


def megatron(name, shape, devices):
    axis = next((axis for pattern, axis in MEGATRON if re.search(pattern, name)), None)
    return PartitionSpec() if axis is None else cut(shape, axis % len(shape))


def cut(shape, axis):
    return PartitionSpec(*("devices" if a == axis else None for a in range(len(shape))))


# name: (where a parameter lies, where the batch lies)
MESHES = {
    "data": (replicated, PartitionSpec("devices")),
    "fsdp": (largest_axis, PartitionSpec("devices")),
    "tensor": (megatron, PartitionSpec()),
}


def gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=1, n_head=8))


def runs(f, ids, rule, batch_spec, devices, seeds):
    """For each seed the losses of a few AdamW steps from the same start; the largest share of the parameters that one
    device holds; the share of those that the rule leaves whole."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("devices",))
    place = {n: NamedSharding(mesh, rule(n, p.shape, devices)) for n, p in f.params.items()}
    everywhere = NamedSharding(mesh, PartitionSpec())
    optimizer = optax.adamw(1e-3)

    @jax.jit
    def step(params, state, buffers, batch, key):
        value, gradient = jax.value_and_grad(f)(params, batch, buffers=buffers, key=key)
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return jax.lax.with_sharding_constraint(params, place), state, value

    start = {n: jax.device_put(p, place[n]) for n, p in f.params.items()}
    buffers = {n: jax.device_put(b, everywhere) for n, b in f.buffers.items()}
    batch = jax.device_put(ids, NamedSharding(mesh, batch_spec))
    first = jax.jit(optimizer.init)(start)
    losses = []
    for seed in seeds:
        params, state = start, first
        for count in range(STEPS):
            params, state, value = step(params, state, buffers, batch, step_key(seed, count))
            losses.append(float(value))
    held = [sum(p.addressable_shards[d].data.nbytes for p in params.values()) for d in range(devices)]
    whole = sum(p.nbytes for n, p in params.items() if rule(n, p.shape, devices) == PartitionSpec())
    total = sum(p.nbytes for p in params.values())
    bitwise = [v.hex() for v in losses]
    return {"losses": losses, "hex": bitwise, "held": max(held) / total, "whole": whole / total}


def train():
    """One entry per mesh; the one of one device with another seed too, those of eight twice with the same."""
    ids = torch.randint(256, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    f = detente.functional(gpt2(), lambda m, ids: m(ids, labels=ids).loss, ids)
    with x64():
        found = {"one": runs(f, ids.numpy(), *MESHES["data"], 1, (7, 8))}
        for name, rules in MESHES.items():
            for devices in (2, 4, 8):
                seeds = (7, 7) if devices == 8 else (7,)
                found[f"{name} {devices}"] = runs(f, ids.numpy(), *rules, devices, seeds)
    return found


def product():
    """``x @ weight.T`` of a torch Linear, 8192 in every direction: the picture of where its parts lie, and its
    distance from the true product along a random vector (Freivalds), in float64."""
    n, rng = 8192, np.random.default_rng(0)
    with torch.device("meta"):
        model = nn.Linear(n, n, bias=False)
    model = model.to_empty(device="cpu")
    model.weight.data = torch.from_numpy(rng.standard_normal((n, n), dtype=np.float32))
    x = torch.from_numpy(rng.standard_normal((n, n), dtype=np.float32))
    f = detente.functional(model, lambda m, x: ((y := m(x)).mean(), y), x)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("rows", "columns"))
    params = {"weight": jax.device_put(f.params["weight"], NamedSharding(mesh, PartitionSpec("columns")))}
    rows = jax.device_put(x.numpy(), NamedSharding(mesh, PartitionSpec("rows")))
    y = jax.jit(lambda params, x: f.apply(params, x)[1][0])(params, rows)
    drawing = io.StringIO()
    with contextlib.redirect_stdout(drawing):
        jax.debug.visualize_array_sharding(y)
    v = rng.standard_normal(n)
    true = x.numpy() @ (model.weight.detach().numpy().T @ v)
    far = np.linalg.norm(np.asarray(y) @ v - true) / np.linalg.norm(true)
    parts = {str(s.device.id): [list(part.indices(n)[:2]) for part in s.index] for s in y.addressable_shards}
    return {
        "drawing": drawing.getvalue(),
        "far": float(far),
        "parts": parts,
        "sharding": str(y.sharding.spec),
    }


if __name__ == "__main__":
    print(json.dumps({"train": train, "product": product}[sys.argv[1]]()))
