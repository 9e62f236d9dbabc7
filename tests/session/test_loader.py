"""``--feed loader``: the batches of the clock come from a DataLoader, in every framework."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("stacks", "workers", "called"),
    [pytest.param("torch-eager,jax", 0, "", marks=pytest.mark.long), ("jax", 1, "1")],
)
def test_a_loader_feeds_every_row(detente: Any, stacks: str, workers: int, called: str) -> None:
    done = detente(
        *("compare", "gemm", "--stacks", stacks, "--size", "tiny", "--feed", "loader"),
        *("--blocks", "1", "--no-aa", "--no-memory", "--format", "json", "--loader-workers", str(workers)),
    )
    assert done.returncode == 0, done.stderr
    rows = {c["label"]: c for c in json.loads(done.stdout)["cells"]}
    assert {label: c["status"] for label, c in rows.items()} == dict.fromkeys(stacks.split(","), "ok"), rows
    for cell in rows.values():
        assert f"+loader{called}/" in cell["group"]
        assert cell["steady_s"]["samples"] >= 5 and cell["parity"]["same_precision"] == "passed", cell
        # torch is in JAX's process to read rows: by this contract that is no second runtime.
        assert not [f for f in cell["findings"] if f["severity"] == "void"]


def test_workers_without_a_loader_are_a_wrong_command(detente: Any) -> None:
    done = detente("compare", "gemm", "--loader-workers", "2", "--dry-run")
    assert done.returncode == 2 and "--feed loader" in done.stderr, done.stderr
