"""The resnet of transformers, unmodified, under a chain of optax equals a network that was written in Flax."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from transformers import ResNetConfig, ResNetForImageClassification

from detente import bridge
from detente.bridge.lower.precision import x64
from detente.workloads.resnet import in_flax, spec
from detente.workloads.weights import to_canonical, to_framework

SIZE = spec.SIZES["tiny"]
STEPS = 5
CHAIN = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2), optax.ema(0.999))
# The names of transformers, and ours, which the map to Flax is written for.
NAMES = (
    (r"^resnet\.embedder\.embedder\.convolution", "conv1"),
    (r"^resnet\.embedder\.embedder\.normalization", "bn1"),
    (r"^resnet\.encoder\.stages\.(\d)\.layers\.(\d)", r"stages.\1.\2"),
    (r"layer\.0\.convolution", "conv1"),
    (r"layer\.0\.normalization", "bn1"),
    (r"layer\.1\.convolution", "conv2"),
    (r"layer\.1\.normalization", "bn2"),
    (r"shortcut\.convolution", "shortcut"),
    (r"shortcut\.normalization", "shortcut_bn"),
    (r"^classifier\.1", "fc"),
)


def canonical(name):
    for pattern, ours in NAMES:
        name = re.sub(pattern, ours, name)
    return name


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    widths = [SIZE["width"] << stage for stage in range(SIZE["stages"])]
    config = ResNetConfig(
        embedding_size=SIZE["width"],
        hidden_sizes=widths,
        depths=[SIZE["blocks"]] * SIZE["stages"],
        layer_type="basic",
        num_labels=SIZE["classes"],
    )
    return ResNetForImageClassification(config).double().train()


def norm_of(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def batches():
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        batch = spec.WORKLOAD.batch(SIZE, rng)
        yield {"images": batch["images"].astype(np.float64), "labels": batch["labels"]}


def through_the_bridge(model):
    """``(losses, gradient norms, every tensor by our name)`` of the torch module."""

    def loss(module, batch):
        return module(batch["images"], labels=batch["labels"]).loss

    f = bridge.functional(model, loss, {n: torch.from_numpy(a) for n, a in next(batches()).items()})
    params, buffers, state = f.params, f.buffers, CHAIN.init(f.params)

    @jax.jit
    def step(params, buffers, state, batch):
        (value, (_, buffers)), gradient = jax.value_and_grad(f.apply, has_aux=True)(
            params, batch, buffers=buffers
        )
        updates, state = CHAIN.update(gradient, state, params)
        return optax.apply_updates(params, updates), buffers, state, value, norm_of(gradient)

    losses, norms = [], []
    for batch in batches():
        params, buffers, state, value, norm = step(params, buffers, state, batch)
        losses.append(float(value))
        norms.append(float(norm))
    return losses, norms, {canonical(n): np.asarray(a) for n, a in (params | buffers).items()}


def by_hand(weights):
    """The same from the Flax definition, with optax as its users write it."""
    module = in_flax.build(SIZE, parameters="float64", compute="float64")
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    rules = in_flax.weights(SIZE, False)
    leaves = to_framework(rules, weights)
    for part in (params, rest):
        for path, variable in nnx.to_flat_state(part):
            variable[...] = jnp.asarray(leaves[path])
    state = CHAIN.init(params)

    @jax.jit
    def step(params, rest, state, batch):
        def loss(params):
            module = nnx.merge(graph, params, rest, copy=True)
            value, _ = in_flax.loss(module, batch)
            return value, nnx.split(module, nnx.Param, ...)[2]

        (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = CHAIN.update(gradient, state, params)
        return optax.apply_updates(params, updates), rest, state, value, norm_of(gradient)

    losses, norms = [], []
    for batch in batches():
        params, rest, state, value, norm = step(params, rest, state, batch)
        losses.append(float(value))
        norms.append(float(norm))
    flat = {path: np.asarray(v[...]) for part in (params, rest) for path, v in nnx.to_flat_state(part)}
    return losses, norms, to_canonical(rules, flat)


def test_a_torch_resnet_under_optax_equals_the_hand_written_jax_run(model):
    start = {canonical(n): t.detach().numpy().copy() for n, t in model.state_dict().items()}
    with x64():
        losses, norms, tensors = through_the_bridge(model)
        own_losses, own_norms, own_tensors = by_hand(start)
    np.testing.assert_allclose(losses, own_losses, rtol=1e-9)
    np.testing.assert_allclose(norms, own_norms, rtol=1e-9)
    assert max(norms) > 1.0, "the clip acts"
    assert set(tensors) - set(own_tensors) == {n for n in tensors if n.endswith("num_batches_tracked")}
    for name, tensor in own_tensors.items():
        assert tensors[name].dtype == np.float64
        far = np.linalg.norm(tensors[name] - tensor) / np.linalg.norm(tensor)
        assert far <= 1e-9, f"{name}: {far:.2e}"
        assert not np.array_equal(tensors[name], start[name]), f"{name} never moved"
    assert all(int(tensors[n]) == STEPS for n in tensors if n.endswith("num_batches_tracked"))
