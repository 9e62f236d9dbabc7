"""How a worker may end, and what the parent makes of it: asked of the smallest job there is."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.fault import MachineFault
from detente.records.job import Job
from detente.session import memory_watch
from detente.session.interrupts import Interrupts
from detente.session.spawn import GRACE_S, spawn

FAULTY = "tests/session/faulty_stacks.py:"
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def probe(stack: str, tmp_path: Path, **more: Any) -> Any:
    """The evidence of a worker that imports the stack and runs one product, and the seconds after its last phase."""
    cell = Cell("gemm", "tiny", FAULTY + stack, CONTRACTS["train-step"], "cpu", stack)
    job = Job("probe", cell, 0, str(tmp_path), str(tmp_path), str(tmp_path), 1)
    last = [0.0]
    with Interrupts() as interrupts:
        ended = spawn(
            job, tmp_path / "log", interrupts, lambda _: last.__setitem__(0, time.monotonic()), **more
        )
    return ended.evidence, time.monotonic() - last[0]


@pytest.mark.parametrize(("stack", "says"), [("LeavesThread", "threads"), ("LeavesFork", "child processes")])
def test_what_a_model_leaves_running_is_ended_and_told(stack: str, says: str, tmp_path: Path) -> None:
    evidence, after = probe(stack, tmp_path)
    assert evidence.status == "ok", evidence.reason
    assert says in evidence.left and "ended" in evidence.left
    # Not the phase limit of 600 s; a loaded machine may need many times the grace.
    assert after < 20 * GRACE_S


def daemons() -> list[psutil.Process]:
    mark = f"# daemon of {os.getpid()}"
    return [p for p in psutil.process_iter(["cmdline"]) if any(mark in a for a in p.info["cmdline"] or ())]


@pytest.mark.skipif(sys.platform != "linux", reason="a daemon hangs below its worker on Linux alone")
def test_a_daemon_does_not_compute_beside_the_next_row(tmp_path: Path) -> None:
    evidence, _ = probe("LeavesDaemon", tmp_path)
    running = [p for p in daemons() if p.status() != psutil.STATUS_ZOMBIE]
    for process in running:
        process.kill()
    assert evidence.status == "ok", evidence.reason
    assert evidence.left == "1 process outside its session, still running behind it: ended"
    assert not running


def test_a_worker_that_leaves_nothing_says_nothing(tmp_path: Path) -> None:
    evidence, _ = probe("Raising", tmp_path)
    assert (evidence.status, evidence.left, evidence.killed) == ("ok", "", "")


def test_a_fork_that_tells_the_evidence_again_is_not_heard_twice(tmp_path: Path) -> None:
    evidence, _ = probe("LeavesTwin", tmp_path)
    assert evidence.status == "ok", evidence.reason


def test_what_is_no_event_ends_nothing(tmp_path: Path) -> None:
    evidence, _ = probe("Babbling", tmp_path)
    assert evidence.status == "ok", evidence.reason


def test_evidence_out_of_its_limits_is_none(tmp_path: Path) -> None:
    evidence, _ = probe("Lying", tmp_path)
    assert evidence.status == "failed" and evidence.samples == ()
    assert "samples[0].wall_ns is 0" in evidence.reason


def test_a_line_without_an_end_is_ended(tmp_path: Path) -> None:
    evidence, _ = probe("Endless", tmp_path)
    assert evidence.status == "failed" and "has no end" in evidence.reason
    assert evidence.killed == ""  # we killed it


def test_a_full_disk_is_the_machines_fault(tmp_path: Path) -> None:
    with pytest.raises(MachineFault) as caught:
        probe("FullDisk", tmp_path)
    assert "No space left on device" in caught.value.message and "--resume" in caught.value.hint


def test_a_kill_from_outside_is_told_apart_from_one_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence, _ = probe("KilledByMemory", tmp_path)
    assert (evidence.status, evidence.killed) == ("failed", "SIGKILL"), evidence.reason
    # The same process where this machine had 400 MiB: what it held then explains its end.
    monkeypatch.setattr(memory_watch, "available", lambda: 400 << 20)
    evidence, _ = probe("KilledByMemory", tmp_path)
    assert (evidence.status, evidence.killed) == ("oom", ""), evidence.reason
    assert "out of memory" in evidence.reason


def test_the_kernels_own_count_of_kills_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 3\noom_kill 1\n")
    monkeypatch.setattr(memory_watch, "_COUNTERS", ((counter, "oom_kill"), (tmp_path / "absent", "oom_kill")))
    watch = memory_watch.MemoryWatch()
    assert watch.killed(1 << 20) == ""
    counter.write_text("low 0\noom 4\noom_kill 2\n")
    assert "the kernel killed a process for memory" in watch.killed(1 << 20)


def test_a_state_folder_that_cannot_be_written_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    cell = Cell("gemm", "tiny", "torch-eager", CONTRACTS["train-step"], "cpu", "torch-eager")
    job = Job("probe", cell, 0, str(tmp_path), str(tmp_path), str(tmp_path), 1)
    with Interrupts() as interrupts, pytest.raises(MachineFault, match="cannot write to"):
        spawn(job, tmp_path / "log" / "000.log", interrupts, lambda _: None)
