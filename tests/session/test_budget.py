"""What a budget decides: how many blocks, and whether the A/A twin runs."""

from __future__ import annotations

import json
from typing import Any

import pytest


def compare(detente: Any, *more: str) -> tuple[dict[str, Any], str]:
    done = detente("compare", "gemm", "--stacks", "torch-eager", "--size", "tiny", "--format", "json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_where_one_block_fits_the_twin_is_dropped_with_the_reason(detente: Any) -> None:
    result, errors = compare(detente, "--budget", "1s")
    rows = {c["label"]: c for c in result["cells"]}
    assert rows["torch-eager"]["status"] == "ok" and rows["torch-eager"]["steady_s"]["processes"] == 1
    assert rows["torch-eager#aa"]["status"] == "skipped"
    assert "holds one block" in rows["torch-eager#aa"]["reason"]
    assert "torch-eager#aa is skipped: the budget of 1 s holds one block" in errors


@pytest.mark.matrix
def test_where_two_fit_it_runs(detente: Any) -> None:
    result, _ = compare(detente, "--budget", "10m", "--blocks", "2", "--no-memory")
    rows = {c["label"]: c for c in result["cells"]}
    assert {c["steady_s"]["processes"] for c in rows.values()} == {2}
