"""kill -9 of a worker in each phase: what was killed runs again with --resume, its evidence is kept, and the row is
not void for it. A process that fails by itself stays failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
from fabricate import make_session

from detente.judge import judge
from detente.records.evidence import Evidence
from detente.records.session import MOST_KILLS, Process, Session

HERE = Path(__file__).resolve().parent


def kill(home: Path, *kills: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(HERE / "killed.py"), *kills],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "DETENTE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        pytest.param("import", "time", marks=pytest.mark.matrix),
        pytest.param("first", "time", marks=pytest.mark.matrix),
        ("steady", "time"),
        pytest.param("first", "memory", marks=pytest.mark.matrix),
    ],
)
def test_what_was_killed_runs_again(phase: str, kind: str, home: Path) -> None:
    killed, resumed, again = kill(home, f"{phase}/{kind}")
    assert killed["killed"]
    assert [kind, "failed", "SIGKILL"] in killed["all"]
    # The failed try is kept; the later one is judged; a second --resume has nothing to do.
    assert [kind, "failed", "SIGKILL"] in resumed["all"] and [kind, "ok", ""] in resumed["all"]
    assert all(status == "ok" for _, status in resumed["judged"])
    assert (resumed["dead"], resumed["whole"]) == ([], 1)
    assert again["all"] == resumed["all"]


@pytest.mark.matrix
def test_a_proof_that_was_killed_runs_again(tmp_path: Path) -> None:
    """In a home of its own: nothing is proved there yet."""
    killed, resumed, _ = kill(tmp_path, "third/prove")
    assert ["prove", "failed", "SIGKILL"] in killed["all"]
    assert ["prove", "ok", ""] in resumed["all"]


def with_end(session: Session, evidence: Evidence, *, later: bool) -> Session:
    """The last process of jax ended so; with ``later`` another one ran after it, in a block of its own."""
    last = next(p for p in reversed(session.processes) if p.cell.label == "jax")
    first = tuple(replace(p, evidence=evidence) if p is last else p for p in session.processes)
    more: tuple[Process, ...] = ()
    if later:
        end = session.ended or 0.0
        newest = [p for p in session.processes if p.block == last.block]
        more = tuple(replace(p, block=last.block + 1, started=end + i) for i, p in enumerate(newest))
    return replace(session, processes=(*first, *more))


KILLED = Evidence("failed", "first", "killed by SIGKILL in phase 'first'", killed="SIGKILL")
FAILED = Evidence("failed", "first", "RuntimeError: planted")


def survivors(session: Session) -> list[str]:
    (row,) = (c for c in judge(session).cells if c.label == "jax")
    return [f.rule for f in row.findings if f.rule == "survivors-only" and f.severity == "void"]


def test_a_row_that_ran_again_is_no_survivor() -> None:
    whole = make_session(6)
    assert survivors(with_end(whole, KILLED, later=False)) == ["survivors-only"]
    again = with_end(whole, KILLED, later=True)
    assert survivors(again) == []
    # Shown, and its block stays out of the pairs: it would be paired with what ran long before.
    (line,) = judge(again).session.again
    assert "jax" in line and "SIGKILL" in line and "ran again" in line
    assert again.whole_blocks() == (0, 1, 2, 3, 4, 6)


def test_a_process_that_fails_by_itself_stays() -> None:
    whole = make_session(6)
    failed = with_end(whole, FAILED, later=True)
    assert survivors(failed) == ["survivors-only"]
    cell = next(c for c in whole.planned if c.label == "jax")
    assert not failed.to_run_again(cell) and cell.key in failed.dead()
    # Also when it fails only in the second try.
    killed = with_end(whole, KILLED, later=False)
    assert killed.to_run_again(cell)
    end = whole.ended or 0.0
    second = Process(cell, "time", 6, 0, end, 1.0, 0.0, FAILED)
    then = replace(killed, processes=(*killed.processes, second))
    assert cell.key in then.dead() and not then.to_run_again(cell)


def test_what_is_killed_again_and_again_is_not_killed_by_chance() -> None:
    whole = make_session(6)
    cell = next(c for c in whole.planned if c.label == "jax")
    for n in range(1, MOST_KILLS + 1):
        tries = tuple(
            Process(cell, "time", 6 + i, 0, (whole.ended or 0.0) + i, 1.0, 0.0, KILLED) for i in range(n)
        )
        session = replace(whole, processes=(*whole.processes, *tries))
        assert session.to_run_again(cell) == (n < MOST_KILLS)
        assert cell.key in session.dead()
