"""A session plans its rows' memory before it runs them, and stores the plan beside what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

# At tiny nearly all of a process is libraries, which a plan knows less of than of tensors: benchmarks/planned_memory.py
# holds the figures of models.
LIMITS = {"torch-eager": 0.20, "jax": 0.20}

FFN = ("compare", "ffn", "--size", "tiny", "--device", "cpu")


@pytest.mark.long
def test_planned_and_measured_stand_beside_each_other(detente: Any) -> None:
    words = (*FFN, "--stacks", ",".join(LIMITS), "--blocks", "1")
    done = detente(*words, "--no-aa", "--format", "json")
    assert done.returncode == 0, done.stderr
    cells = {c["stack"]: c["memory"] for c in json.loads(done.stdout)["cells"]}
    for stack, limit in LIMITS.items():
        memory = cells[stack]
        assert memory["planned_peak"] < memory["planned_process"]
        # Without what compiling took.
        assert memory["step_peak"] <= memory["process_peak"]
        assert abs(memory["planned_process"] / memory["step_peak"] - 1) <= limit, (stack, memory)


@pytest.mark.long
def test_what_a_plan_compiled_is_not_there_when_the_first_step_is_timed(detente: Any, tmp_path: Path) -> None:
    """A plan compiles the very step, and its row's first timed process is the one that is told as cold."""
    words = (*FFN, "--stacks", "jax,detente", "--blocks", "2")
    done = detente(*words, "--no-aa", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert detente("export", "--output", str(tmp_path / "session.jsonl")).returncode == 0
    lines = map(json.loads, (tmp_path / "session.jsonl").read_text().splitlines())
    kinds = [(p["kind"], p["evidence"]["compile"]["cache_state"]) for p in lines if "evidence" in p]
    assert [state for kind, state in kinds if kind == "time"] == ["miss"] * 2 + ["hit"] * 2, kinds
    assert "plan" in [kind for kind, _ in kinds]


@pytest.mark.long
def test_a_worker_that_runs_out_says_what_it_was_allowed_and_planned(detente: Any) -> None:
    fits = detente(
        "fits",
        "ffn",
        "--size",
        "tiny",
        "--stacks",
        "torch-eager",
        "--device",
        "cpu",
        "--contract",
        "gradient",
    )
    assert fits.returncode == 0, fits.stderr
    words = (
        "compare",
        "ffn",
        "--stacks",
        "torch-eager",
        "--size",
        "tiny",
        "--device",
        "cpu",
        "--contract",
        "gradient",
    )
    quick = ("--blocks", "1", "--no-aa", "--no-memory", "--format", "json")
    assert detente(*words, *quick).returncode == 0  # its weights are there now
    done = detente(*words, *quick, "--memory-cap", "60M")
    (cell,) = json.loads(done.stdout)["cells"]
    assert cell["status"] == "oom"
    assert "allowed 0.0629 GB, it was planned to hold" in cell["reason"], cell["reason"]


@pytest.mark.long
def test_a_row_that_lets_others_go_first_is_planned_when_its_turn_comes(detente: Any, tmp_path: Path) -> None:
    """Its plan compiles for as long as the row does: the budget is the others' until then. A home of its own: which row
    rests hangs on what sessions before it measured, and in a new one on a guess."""
    words = (*FFN, "--stacks", "torch-eager,jax,torch-compile", "--budget", "25s")
    done = detente(*words, DETENTE_HOME=str(tmp_path / "home"))
    assert done.returncode in (0, 3), done.stderr
    resting = re.findall(r"(\S+) let others go first", done.stderr)
    assert resting and resting[0] in ("jax", "torch-compile"), done.stderr
    (going,) = {"jax", "torch-compile"} - {resting[0]}
    (session,) = (tmp_path / "home" / "data" / "sessions").glob("*.jsonl")
    lines = map(json.loads, session.read_text().splitlines())
    ran = [(p["kind"], p["cell"]["stack"]) for p in lines if "evidence" in p]
    timed = [place for place, (kind, stack) in enumerate(ran) if kind == "time" and stack == going]
    late = [place for place, what in enumerate(ran) if what == ("plan", resting[0])]
    assert ("plan", going) in ran and timed, ran
    assert all(place > timed[0] for place in late), ran
