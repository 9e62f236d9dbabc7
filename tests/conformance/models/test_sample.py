"""Architectures of different kinds through the coverage run's own code, as `make coverage` runs all of them."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from zoo.architectures import TASKS, Architecture, architectures
from zoo.attempt import disagreement
from zoo.build import build, loss, optimizer
from zoo.table import page

HERE = Path(__file__).parent

# an encoder with dropout; convolutions and BatchNorm's buffers; one that writes its labels in place
SAMPLE = {
    "DistilBertForMaskedLM": "passed",
    "ResNetForImageClassification": "passed",
    "FSMTForConditionalGeneration": "refused",
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("zoo")
    rows, only = folder / "rows.jsonl", f"^({'|'.join(SAMPLE)})$"
    paths = [str(HERE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    done = subprocess.run(
        [sys.executable, "-m", "zoo", "--rows", rows, "--page", folder / "page.md", "--only", only],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {record["name"]: record for record in map(json.loads, rows.read_text().splitlines())}


@pytest.mark.parametrize("name", SAMPLE)
def test_architecture(name, records):
    record = records[name]
    assert record["outcome"] == SAMPLE[name], record
    if record["outcome"] == "refused":
        assert "modeling_" in record["where"], record


def test_the_second_comparison_finds_a_wrong_step():
    """What calls a step wrong is tried on a right one, on a wrong loss and on an update that is 2 % short."""
    architecture = next(a for a in architectures() if a.name == "DistilBertForTokenClassification")
    built = build(architecture)
    built.model.eval()  # no random numbers

    def run(weights, loss_by=1.0, moved_by=1.0):
        model = copy.deepcopy(built.model)
        model.load_state_dict(weights or built.model.state_dict())
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        value = loss(model, built.batch)
        value.backward()
        optimizer(model).step()
        after = {name: before[name] + moved_by * (t - before[name]) for name, t in model.state_dict().items()}
        return float(value.detach()) * loss_by, after

    assert disagreement(built, run, 0) == ""
    assert "loss" in disagreement(built, functools.partial(run, loss_by=1.01), 0)
    assert "update" in disagreement(built, functools.partial(run, moved_by=0.98), 0)


def test_every_listed_class_is_on_the_page_once():
    task = TASKS[0]
    listed = [Architecture(name, name.lower(), task) for name in ("Done", "Out", "Later", "Bad")]
    rows = [
        {"name": "Done", "task": task.name, "outcome": "passed", "divide": 16, "parameters": 7, "nodes": 3}
        | {"draws": 0, "form": "unrolled"},
        {"name": "Out", "task": task.name, "outcome": "outside", "detail": "too large"},
        {"name": "Bad", "task": task.name, "outcome": "wrong", "detail": "loss 1.0"},
    ]
    text = page(rows, listed)
    assert "| all | 1 | 0 | 0 | 1 | 0 | 1 | 1 |" in text
    assert "unfinished" in text and "\nLater.\n" in text and "| Bad | wrong |" in text
    assert "Passed: 1 of 2, 50.0 %" in text


def test_the_list_has_every_class_once_and_families_first():
    found = architectures()
    assert len({a.name for a in found}) == len(found) > 500
    families = {a.model_type for a in found}
    assert {a.model_type for a in found[: len(families)]} == families
