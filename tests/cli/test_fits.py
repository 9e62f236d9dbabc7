"""``detente fits``: planned, told, kept; and one clear line where it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

STACKS = "torch-eager,jax"


def test_a_table_and_what_the_machine_has(detente: Any) -> None:
    done = detente("fits", "ffn", "--size", "tiny", "--stacks", STACKS, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    head, eager, jax, _, machine = done.stdout.splitlines()
    assert head.split() == [
        "workload", "size", "row", "parameters", "gradients", "optimizer", "activations", "temporary", "at", "once",
        "kept", "process", "fits",
    ]  # fmt: skip
    assert eager.split()[:3] == ["ffn", "tiny", "torch-eager"] and eager.endswith("yes")
    assert jax.endswith("yes") and machine.startswith("this machine has ")


def test_it_is_kept_and_a_dry_run_tells_it(detente: Any) -> None:
    first = detente(
        "fits", "ffn", "--size", "tiny", "--stacks", STACKS, "--device", "cpu", "--format", "json"
    )
    again = detente(
        "fits", "ffn", "--size", "tiny", "--stacks", STACKS, "--device", "cpu", "--format", "json"
    )
    one, two = (json.loads(d.stdout) for d in (first, again))
    assert one["schema"] == "detente/fits/1"
    # The same numbers to the byte, the process's too: it was not planned again.
    assert [r["memory"] for r in one["rows"]] == [r["memory"] for r in two["rows"]]
    told = detente(
        "compare", "ffn", "--size", "tiny", "--stacks", STACKS, "--device", "cpu", "--dry-run", "--no-aa"
    )
    assert told.stdout.count("a process is planned to hold") == 2, told.stdout
    other = detente(
        "compare", "mha", "--size", "tiny", "--stacks", STACKS, "--device", "cpu", "--dry-run", "--no-aa"
    )
    assert "`detente fits` plans what each row will hold" in other.stdout


def test_what_does_not_fit_is_said_and_nothing_of_it_is_made(detente: Any) -> None:
    """8 billion parameters, gradients and moments are 129 GB; they are counted and never there."""
    done = detente(
        "fits", "llama", "--size", "paper", "--stacks", "torch-eager", "--device", "cpu", "--format", "json"
    )
    (row,) = json.loads(done.stdout)["rows"]
    assert row["status"] == "ok" and row["memory"]["planned_peak"] >= 16 * 8_030_261_248
    fits = row["memory"]["planned_process"] <= json.loads(done.stdout)["total"]
    assert done.returncode == (0 if fits else 1)


def test_what_cannot_be(detente: Any) -> None:
    done = detente("fits", "gpt3")
    assert done.returncode == 2 and "gpt2" in done.stderr and "Traceback" not in done.stderr
    done = detente("fits", "ffn", "--size", "tiny,inner=0")
    assert done.returncode == 2 and "inner=0" in done.stderr
    done = detente("fits", "resnet50", "--size", "tiny", "--stacks", "jax-scan")
    assert done.returncode == 3 and "no repeated layers" in done.stdout


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has such a device")
def test_a_device_that_is_not_here_is_skipped_by_name(detente: Any) -> None:
    """Of a platform without a plugin JAX raises an assertion that says nothing."""
    done = detente("fits", "ffn", "--size", "tiny", "--stacks", "torch-eager,jax,detente", "--device", "cuda")
    assert done.returncode == 3 and "AssertionError" not in done.stdout
    assert done.stdout.count("skipped: cuda: ") == 3, done.stdout
