"""``--feed loader``: the batches of the clock come from a DataLoader, in every framework."""

from __future__ import annotations

import json
from typing import Any


def test_a_loader_feeds_every_row(detente: Any) -> None:
    done = detente(
        *("compare", "gemm", "--stacks", "torch-eager,jax", "--size", "tiny", "--feed", "loader"),
        *("--blocks", "1", "--no-aa", "--no-memory", "--format", "json"),
    )
    assert done.returncode == 0, done.stderr
    rows = {c["label"]: c for c in json.loads(done.stdout)["cells"]}
    assert {label: c["status"] for label, c in rows.items()} == {"torch-eager": "ok", "jax": "ok"}, rows
    for cell in rows.values():
        assert "+loader/" in cell["group"]
        assert cell["steady_s"]["samples"] >= 5 and cell["parity"]["same_precision"] == "passed", cell
        # torch is in JAX's process to read rows: by this contract that is no second runtime.
        assert not [f for f in cell["findings"] if f["severity"] == "void"]
