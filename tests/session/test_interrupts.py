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
FRESH = [("import", "prepare"), ("reference-fp64", "prepare"), ("import", "prove"), ("third", "prove")]
WHOLE = ["prove", "plan", "time", "memory"]


def interrupt(home: Path, presses: list[tuple[str, str]], times: int) -> list[dict[str, Any]]:
    """What every interrupted session told. The last one goes to the end, and is whole."""
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "interrupted.py"),
            *(f"{phase}/{kind}/{times}" for phase, kind in presses),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "DETENTE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    *told, last = json.loads(done.stdout)
    # The same processes as one that nobody interrupted.
    assert (last["kept"], last["note"], last["statuses"]) == (WHOLE, "", ["ok"])
    assert [t["pressed"] for t in told] == [True] * len(presses)
    return told


def test_twice_leaves_no_trace_of_the_process(home: Path) -> None:
    """In every phase, one after the other, in one session that is continued each time."""
    told = interrupt(home, PHASES, 2)
    assert [t["note"] for t in told] == ["interrupted"] * len(PHASES)
    assert [t["kept"] for t in told] == [WHOLE[: WHOLE.index(kind)] for _, kind in PHASES]


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        pytest.param("import", "time", marks=pytest.mark.matrix),
        ("steady", "time"),
        pytest.param("reading", "memory", marks=pytest.mark.matrix),
    ],
)
def test_once_finishes_the_process_and_keeps_it(phase: str, kind: str, home: Path) -> None:
    (once,) = interrupt(home, [(phase, kind)], 1)
    # Once in the last process of all: it finishes, and then nothing was interrupted.
    note = "" if kind == "memory" else "interrupted"
    assert (once["note"], once["kept"]) == (note, WHOLE[: WHOLE.index(kind) + 1])


@pytest.mark.matrix
def test_proof_and_preparation_can_be_interrupted(tmp_path: Path) -> None:
    """In a home of its own: weights that were half written must not count as prepared."""
    told = interrupt(tmp_path, FRESH, 2)
    assert [t["note"] for t in told] == ["interrupted"] * len(FRESH)
    assert [t["kept"] for t in told] == [[]] * len(FRESH)


@pytest.mark.long
def test_a_plan_can_be_interrupted(tmp_path: Path) -> None:
    """In a home of its own, where none is stored: twice leaves none, and the session goes on."""
    (told,) = interrupt(tmp_path, [("build", "plan")], 2)
    assert (told["note"], told["kept"]) == ("interrupted", ["prove"])


@pytest.mark.matrix
def test_once_in_proof_or_preparation_finishes_it(tmp_path: Path) -> None:
    prepared, proved = interrupt(tmp_path, [FRESH[1], FRESH[3]], 1)
    assert (prepared["note"], prepared["kept"]) == ("interrupted", [])
    assert (proved["note"], proved["kept"]) == ("interrupted", ["prove"])


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "detente", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


GEMM = ("compare", "gemm", "--size", "tiny", "--stacks", "torch-eager", "--no-aa", "--no-memory")


@pytest.mark.matrix
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
