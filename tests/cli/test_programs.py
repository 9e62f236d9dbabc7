"""``detente programs``, as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from detente.programs.count import count_program
from detente.records.codec import from_json
from detente.records.counts import Counts

Run = Callable[..., subprocess.CompletedProcess[str]]

pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("torch", reason="torch is not installed: it makes the weights")


def test_counts_and_files(detente: Run, tmp_path: Path) -> None:
    found = detente(
        "programs", "gemm", "jax", "torch-eager", "--format", "json", "--save", str(tmp_path / "p")
    )
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert (told["schema"], told["workload"], told["size"]) == ("detente/programs/1", "gemm", "tiny")
    jax, eager = told["stacks"]
    assert (jax["status"], eager["status"]) == ("ok", "ok")
    (operators,) = eager["programs"]
    assert operators["form"] == "operators" and operators["counts"]["flops"] == 3 * 2 * 64 * 48 * 32
    programs = {p["form"]: p for p in jax["programs"]}
    counts = from_json(Counts, programs["hlo"]["counts"])
    assert counts.flops == 3 * 2 * 64 * 48 * 32
    assert counts.product_dtypes == {"f32": 3}
    kept = (tmp_path / "p" / "jax.step.hlo.pb").read_bytes()
    assert count_program(kept, "hlo").hash == counts.hash


def test_the_table(detente: Run) -> None:
    found = detente("programs", "gemm", "jax", "torch-eager", "--program", "hlo", "--parts")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert "jax, by part" in lines and "torch-eager, by part" in lines
    told = [line for line in lines if line.startswith("of its operations ")]
    assert len(told) == 2 and all(re.search(r"of \S+ [mµ]s in kernels", line) for line in told), told
    assert [line.split()[-1] for line in lines if line.startswith("FLOPs of products")] == ["589,824"]
    assert not any("StableHLO" in line for line in lines)


def test_a_stack_that_is_not_installed_is_skipped_with_its_command(detente: Run, tmp_path: Path) -> None:
    found = detente("programs", "gemm", "torch-xla", DETENTE_HOME=str(tmp_path))
    assert found.returncode == 0, found.stderr
    assert "torch-xla: skipped: not installed: `detente stacks add torch-xla`" in found.stdout


def test_names(detente: Run) -> None:
    found = detente("programs", "gem", "jax")
    assert found.returncode == 2 and "did you mean 'gemm'?" in found.stderr
