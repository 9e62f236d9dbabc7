"""docs/add-a-workload.md and docs/compare-your-own-model.md, followed step by step: what they tell to write is written,
and must work."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from detente.workloads.catalogue import WORKLOADS, find_size, find_workload
from detente.workloads.own import in_torch
from detente.workloads.weights import to_canonical, to_framework

PAGES = [Path(__file__).parents[2] / "docs" / f"{n}.md" for n in ("add-a-workload", "compare-your-own-model")]
BLOCKS = {
    name: text
    for page in PAGES
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", page.read_text(), re.DOTALL)
}


def test_your_own_model(tmp_path):
    file = tmp_path / "my_model.py"
    file.write_text(BLOCKS["my_model.py"])
    workload = find_workload(f"{file}:make")
    size = find_size(workload, None)
    module = in_torch.build(size)
    batch = {n: torch.from_numpy(a) for n, a in workload.batch(size, np.random.default_rng(0)).items()}
    loss, outputs = in_torch.loss(module, batch)
    assert loss.item() > 0
    assert outputs["y"].shape == (8, 1)


@pytest.fixture
def line(tmp_path, monkeypatch):
    """The workload of the page, as if its folder lay beside the others."""
    import detente.workloads

    for name in ("spec", "in_torch", "in_flax"):
        path = tmp_path / "line" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(BLOCKS[f"line/{name}.py"])
    (tmp_path / "line/__init__.py").touch()
    monkeypatch.setattr(detente.workloads, "__path__", [*detente.workloads.__path__, str(tmp_path)])
    row = re.search(r"`\"line\": \"(.*?)\",`", PAGES[0].read_text())
    assert row
    monkeypatch.setitem(WORKLOADS, "line", row.group(1))
    yield find_workload("line")
    for name in [m for m in sys.modules if m.startswith("detente.workloads.line")]:
        del sys.modules[name]


def test_the_three_files_make_one_function(line):
    import jax
    from flax import nnx

    size = line.sizes["tiny"]
    ours, theirs = (importlib.import_module(line.definitions[f]) for f in ("torch", "flax"))
    module = ours.build(size)
    canonical = {n: p.detach().numpy() for n, p in module.named_parameters()}
    arrays = line.batch(size, np.random.default_rng(0))
    loss, _ = ours.loss(module, {n: torch.from_numpy(a) for n, a in arrays.items()})
    loss.backward()

    graph, params = nnx.split(theirs.build(size, parameters="float32", compute="float32"), nnx.Param)
    leaves = to_framework(theirs.weights(size, False), canonical)
    for path, variable in nnx.to_flat_state(params):
        variable[...] = jax.numpy.asarray(leaves[path])
    value, found = jax.value_and_grad(lambda p: theirs.loss(nnx.merge(graph, p, copy=True), arrays)[0])(
        params
    )
    gradients = {path: np.asarray(v[...]) for path, v in nnx.to_flat_state(found)}
    assert float(value) == pytest.approx(loss.item(), rel=1e-6)
    for name, gradient in to_canonical(theirs.weights(size, False), gradients).items():
        np.testing.assert_allclose(gradient, module.get_parameter(name).grad.numpy(), rtol=1e-5, atol=1e-6)


def test_its_costs_are_those_that_the_page_explains(line):
    size = line.sizes["tiny"]
    assert line.flops(size, "forward") == 2 * 8 * 6 * 3
    assert line.flops(size, "gradient") == line.flops(size, "train-step") == 2 * line.flops(size, "forward")
    assert line.bytes(size, "train-step", 4, 4) == 6 * 4 * 21 + 4 * 8 * 9
