"""Ctrl-C in each phase: once keeps the process, twice leaves no trace of it; --resume completes both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
# Every phase of every kind of process that a session of one row runs, in order (gemm has a stored proof by then).
PHASES = [
    ("import", "time"),
    ("build", "time"),
    ("first", "time"),
    ("second", "time"),
    ("third", "time"),
    ("reload", "time"),
    ("proof", "time"),
    ("steady", "time"),
    ("probes", "time"),
    ("import", "memory"),
    ("first", "memory"),
    ("reading", "memory"),
]
FRESH = [("import", "prove"), ("third", "prove"), ("import", "prepare"), ("reference-fp64", "prepare")]
WHOLE = ["prove", "time", "memory"]


def interrupt(phase: str, kind: str, home: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(HERE / "interrupted.py"), phase, kind],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "DETENTE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    # The continued session is whole: the same processes as one that nobody interrupted.
    assert told[-1]["kept"] == WHOLE
    assert (told[-1]["note"], told[-1]["statuses"]) == ("", ["ok"])
    return told


@pytest.mark.parametrize(("phase", "kind"), PHASES)
def test_twice_leaves_no_trace_of_the_process_and_once_keeps_it(phase: str, kind: str, home: Path) -> None:
    twice, once, _ = interrupt(phase, kind, home)
    before = WHOLE.index(kind)
    assert (twice["pressed"], twice["note"], twice["kept"]) == (True, "interrupted", WHOLE[:before])
    # Once in the last process of all: it finishes, and then nothing was interrupted.
    note = "" if kind == "memory" else "interrupted"
    assert (once["pressed"], once["note"], once["kept"]) == (True, note, WHOLE[: before + 1])


@pytest.mark.parametrize(("phase", "kind"), FRESH)
def test_proof_and_preparation_can_be_interrupted(phase: str, kind: str, tmp_path: Path) -> None:
    """In a home of its own: weights that were half written must not count as prepared."""
    twice, once, _ = interrupt(phase, kind, tmp_path)
    assert (twice["pressed"], twice["note"], twice["kept"]) == (True, "interrupted", [])
    assert (once["pressed"], once["note"]) == (True, "interrupted")
    assert once["kept"] == (["prove"] if kind == "prove" else [])


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "detente", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


GEMM = ("compare", "gemm", "--size", "tiny", "--stacks", "torch-eager", "--no-aa", "--no-memory")


def test_two_sessions_at_once_wait_for_each_other(home: Path, tmp_path: Path) -> None:
    """They would measure each other: the second says whom it waits for, and both end well."""
    lock = {"DETENTE_LOCK": str(tmp_path / "lock")}
    first = start(*GEMM, "--blocks", "2", "--format", "json", **lock)
    assert first.stderr is not None
    for line in first.stderr:
        if "took" in line:
            break
    second = start(*GEMM, "--blocks", "1", "--format", "json", **lock)
    out, errors = second.communicate(timeout=240)
    mine, _ = first.communicate(timeout=10)
    assert (first.returncode, second.returncode) == (0, 0), errors
    assert f"another session (process {first.pid}) is timing on this machine; waiting for it" in errors
    one, two = json.loads(mine)["session"], json.loads(out)["session"]
    assert one["id"] != two["id"]


def test_ctrl_c_while_waiting_for_the_lock_is_an_interruption(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock.open("w") as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = start(*GEMM, DETENTE_LOCK=str(lock))
        assert waiting.stderr is not None
        for line in waiting.stderr:
            if "waiting for it" in line:
                waiting.send_signal(signal.SIGINT)
                break
        began = time.monotonic()
        _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 130, errors
    assert "Traceback" not in errors
    assert time.monotonic() - began < 30
