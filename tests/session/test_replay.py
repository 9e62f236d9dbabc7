"""What is timed is proved, in a real session: handed out, taken again, held against the parent's clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detente.judge.rules.window import CAP, MANY_CAP, change_share
from detente.records.session import Session
from detente.records.window import MANY_STEPS
from detente.store.spool import read_spool

# Trains for as many steps as the reference holds from loaded weights, and then no more: only a stretch can tell.
STOPS = "tests/museum/torch_window.py:StopsByLoad"


@pytest.fixture(scope="module")
def measured(detente: Any, home: Path) -> tuple[dict[str, Any], Session]:
    done = detente(
        *("compare", "ffn", "--contract", "train-step", "--size", "tiny", "--stacks", f"torch-eager,{STOPS}"),
        *("--blocks", "1", "--no-aa", "--no-memory", "--format", "json"),
        timeout=600,
        DETENTE_REPLAY="1",
    )
    found = json.loads(done.stdout)
    assert "cells" in found, done.stderr
    spool = next(home.rglob(f"sessions/{found['session']['id']}.jsonl"))
    return {c["label"]: c for c in found["cells"]}, read_spool(spool)


def test_a_fair_row_is_taken_again_and_agrees(measured: tuple[dict[str, Any], Session]) -> None:
    rows, session = measured
    assert rows["torch-eager"]["status"] == "ok", rows["torch-eager"]["reason"]
    (process,) = (p for p in session.processes if p.kind == "time" and p.cell.label == "torch-eager")
    window = process.evidence.window
    assert window is not None and 11 <= window.proved <= 35 and len(window.hand_outs) >= 2
    # Parameters, both moments of each, and the count of updates, each against fp64.
    kinds = {(e.kind, e.name.partition(":")[0]) for e in window.errors if e.kind == "moment"}
    assert kinds == {("moment", "exp_avg"), ("moment", "exp_avg_sq"), ("moment", "step")}
    # Of a model as small as this every stretch, each at a place of its own.
    replays = session.replays_of(process.cell, process.block)
    assert len(replays) == 3 and len({r.first for r in replays}) == 3
    for replay in replays:
        assert not replay.reason and replay.steps >= 1
        assert {e.kind for e in replay.errors} == {"update", "moment"}
        cap = (MANY_CAP if replay.steps > MANY_STEPS else CAP)["fp32"]
        assert 0 < change_share(replay.errors) < cap
    # The parent saw the same window, by a clock of its own and by the kernel's account.
    inside = sum(s.wall_ns for s in process.evidence.samples) + window.warm_ns
    assert 0.5 * inside < window.parent_wall_ns and window.parent_cpu_ns > 0
    assert {"import", "build", "first", "steady", "window", "probes"} <= process.phases.keys()


def test_a_row_that_stops_behind_the_steps_that_are_compared_is_void(
    measured: tuple[dict[str, Any], Session],
) -> None:
    rows, _ = measured
    cell = rows["StopsByLoad"]
    told = {f["rule"]: f["what"] for f in cell["findings"] if f["severity"] == "void"}
    assert cell["status"] == "void" and "taken again by the reference" in told["window-not-proved"], told


def test_nothing_that_was_handed_out_is_left(measured: tuple[dict[str, Any], Session], home: Path) -> None:
    left = [p for p in home.rglob("handed/*/*") if p.is_file() or any(p.iterdir())]
    assert not left
