"""The prepare job: what its short ways must not change."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.job import Job
from detente.stacks.torch_eager import TorchEager
from detente.stacks.torch_undrawn import undrawn
from detente.worker.events import Events
from detente.worker.jobs import prepare
from detente.worker.prepared import map_batches, map_weights
from detente.worker.reference import map_reference
from detente.worker.sketch import sketch
from detente.workloads.catalogue import find_size, find_workload


@pytest.fixture(autouse=True)
def default_dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_the_stored_gradients_are_those_of_a_backward_pass_of_their_own(name: str, tmp_path: Path) -> None:
    contract = replace(CONTRACTS[find_workload(name).contracts[0]].at("fp64"), feed="resident")
    assert contract.region == "train-step"
    cell = Cell(name, "tiny", "torch-eager", contract, "cpu", "torch-eager")
    job = Job("prepare", cell, seed=3, prepared=str(tmp_path), artefacts="", cache="", threads=1, batches=3)
    told = os.open(os.devnull, os.O_WRONLY)
    assert prepare.run(job, Events(told)).status == "ok"
    stored = map_reference(tmp_path, contract)
    stack = TorchEager()
    stack.start("cpu", "fp64", 1)
    workload = find_workload(name)
    running = stack.build(workload, find_size(workload, "tiny"), contract)
    running.load(map_weights(tmp_path))
    found = running.gradients(running.place(map_batches(tmp_path)[0]))
    assert {f"gradient|{n}" for n in found} == {k for k in stored.sketches if k.startswith("gradient|")}
    for tensor, gradient in found.items():
        np.testing.assert_allclose(
            stored.sketches[f"gradient|{tensor}"], sketch(tensor, gradient), rtol=1e-12, atol=1e-15
        )


def test_a_module_built_undrawn_holds_zeros_where_it_would_hold_draws() -> None:
    def build() -> torch.nn.Module:
        modules = [
            torch.nn.Linear(3, 4),
            torch.nn.Embedding(5, 3),
            torch.nn.LSTM(3, 4),
            torch.nn.Conv2d(1, 2, 3),
        ]
        for m in modules:
            for p in m.parameters():
                torch.nn.init.trunc_normal_(p) if p.ndim > 1 else torch.nn.init.normal_(p)
        return torch.nn.ModuleList(modules)

    with undrawn():
        empty = build()
    assert all(not p.any() for p in empty.parameters())
    drawn = build()
    assert all(p.any() for p in drawn.parameters())
    assert [p.shape for p in empty.parameters()] == [p.shape for p in drawn.parameters()]


def test_what_a_module_sets_without_drawing_is_kept() -> None:
    with undrawn():
        norm = torch.nn.BatchNorm1d(3)
    assert torch.equal(norm.weight.detach(), torch.ones(3)) and torch.equal(norm.running_var, torch.ones(3))
