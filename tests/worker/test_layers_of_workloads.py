"""Our own definitions agree in every layer, and a leaf that is made wrong is named as the tensor that it is."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from detente.worker.layers.compare import first_difference
from detente.workloads.catalogue import find_size, find_workload
from detente.workloads.weights import to_framework
from tests.sampled import sampled
from tests.worker.layer_pairs import jax_side, torch_side


def dotted(path: Any, layer: int | None = None) -> str:
    return ".".join(map(str, path)) + ("" if layer is None else f"[{layer}]")


@pytest.mark.parametrize(
    ("name", "scan"), sampled([("gpt2", True), ("gpt2", False), ("resnet", False)], 3, several=True)
)
def test_layers_of_a_workload(name: str, scan: bool) -> None:
    workload = find_workload(name)
    size = find_size(workload, "tiny")
    ours, theirs = (importlib.import_module(workload.definitions[n]) for n in ("torch", "flax"))
    torch.manual_seed(0)
    module = ours.build(size).double().train()
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
    batch = workload.batch(size, np.random.default_rng(0))
    batch = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in batch.items()}

    with jax.enable_x64(True):
        flax = theirs.build(size, parameters="float64", compute="float64", scan=scan)
        flax.train()
        graph, state = nnx.split(flax)
    rules = theirs.weights(size, scan)
    tensors = {n: t.detach().numpy() for n, t in module.state_dict().items()}
    leaves = {dotted(p): a for p, a in to_framework(rules, {r.name: tensors[r.name] for r in rules}).items()}
    parts: dict[str, tuple[str, ...]] = {}
    for rule in rules:
        parts[rule.name] = (*parts.get(rule.name, ()), dotted(rule.path, rule.layer))

    def function(named: Any, batch: Any) -> Any:
        flat = [(p, v.replace(named.get(dotted(p), v[...]))) for p, v in nnx.to_flat_state(state)]
        made = nnx.merge(graph, nnx.from_flat_state(flat))
        return theirs.loss(made, batch), nnx.state(made)

    class Loss(torch.nn.Module):
        def forward(self, batch: Any) -> Any:
            return ours.loss(module, batch)

        named_parameters, named_buffers = module.named_parameters, module.named_buffers

    right = torch_side(Loss(), {n: torch.from_numpy(a) for n, a in batch.items()})
    assert first_difference(right, jax_side(function, leaves, batch), parts) is None

    # Running statistics are written in training, and not read.
    for rule in [r for r in rules if "running" not in r.name]:
        changed = leaves[dotted(rule.path)].copy()
        changed[... if rule.layer is None else rule.layer] *= 1.01
        wrong = {**leaves, dotted(rule.path): changed}
        found = first_difference(right, jax_side(function, wrong, batch), parts)
        assert found is not None and rule.name in found.tensors and found.given is not False, (
            rule.name,
            found,
        )
