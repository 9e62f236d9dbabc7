"""Rows that this machine can never hold end as out of memory, and nothing of them is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from detente.cli.fits_chips import lines_of
from detente.records.cell import Cell
from detente.records.chip import CHIPS
from detente.records.contract import CONTRACTS
from detente.session import beyond
from detente.session.beyond import beyond_chip, beyond_machine


def cell(contract: str, precision: str = "fp32", stack: str = "jax", device: str = "cpu") -> Cell:
    return Cell("llama", "paper", stack, CONTRACTS[contract].at(precision), device, stack)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(total=24 * 10**9)
    monkeypatch.setattr(beyond.psutil, "virtual_memory", lambda: memory)


@pytest.mark.usefixtures("small")
def test_only_what_is_there_at_once_on_every_stack_counts() -> None:
    assert "alone are 96.4 GB (128 GB with all gradients), and this machine has 24 GB" in beyond_machine(
        cell("train-step")
    )
    assert "64.2 GB" in beyond_machine(cell("train-step-sgd"))
    assert "32.1 GB (64.2 GB with all gradients)" in beyond_machine(cell("gradient"))
    assert beyond_machine(cell("forward", "bf16-true")) == ""  # 16 GB: tried
    assert beyond_machine(cell("gradient", "bf16-true")) == ""  # its gradients need not be there at once


@pytest.mark.usefixtures("small")
def test_a_cap_of_the_users_counts_and_an_accelerator_is_another_memory() -> None:
    assert "a worker is allowed 10 GB" in beyond_machine(cell("forward", "bf16-true"), 10 * 10**9)
    assert beyond_machine(cell("train-step", device="cuda")) == ""


def test_a_session_of_such_rows_ends_at_once_and_says_what_they_would_take(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "detente",
                "compare",
                "gpt2",
                "--size",
                "tiny",
                "--stacks",
                "torch-eager,jax",
            ),
            *("--set", "vocab=2000000", "--set", "hidden=8192", "--blocks", "1", "--format", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "DETENTE_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    found = json.loads(done.stdout)
    assert {c["status"] for c in found["cells"]} == {"oom"}, done.stderr[-2000:]
    assert all("weights and optimizer state alone" in c["reason"] for c in found["cells"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(tmp_path.rglob("weights.safetensors"))


def test_no_form_of_a_program_fits_a_chip_that_its_weights_do_not() -> None:
    found = beyond_chip(cell("train-step"), CHIPS["tpu-v6e"])
    assert found is not None and found.memory[":peak"] > CHIPS["tpu-v6e"].memory
    (line,) = lines_of(replace(cell("train-step"), device="tpu-v6e"), found)
    assert line.fits is False and "not compiled" in line.reason and "33.6 GB" in line.reason
    assert beyond_chip(cell("train-step"), CHIPS["h100"]) is not None
    # 16 GB of bf16 weights: only a compiler can tell.
    assert beyond_chip(cell("forward", "bf16-true"), CHIPS["tpu-v6e"]) is None
