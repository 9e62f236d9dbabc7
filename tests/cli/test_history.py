"""``detente history``: rows that are void are left out, whoever measured the session, and a gate knows how far sessions
lie apart."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
from fabricate import make_session

from detente.records.session import Session
from detente.store.lines import session_lines
from detente.store.spool import Spool


@pytest.fixture
def at(detente: Any, tmp_path: Path) -> Callable[..., Any]:
    """The command line in a home of its own."""
    return lambda *arguments: detente(*arguments, DETENTE_HOME=str(tmp_path / "home"))


def measured(tmp_path: Path, session: Session) -> None:
    """As a parent leaves it that was killed, or has neither database nor judge."""
    Spool.create(tmp_path / "home/data/sessions", session).close()


def compiling(session: Session) -> Session:
    """Its rows of jax compile inside of their windows."""

    def worse(p: Any) -> Any:
        record = replace(p.evidence.compile, steady_events=3)
        return replace(p, evidence=replace(p.evidence, compile=record)) if p.cell.label == "jax" else p

    return replace(session, processes=tuple(map(worse, session.processes)))


def test_a_void_row_of_an_imported_session_is_left_out(at: Any, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_bytes(b"".join(session_lines(compiling(make_session(6)))))
    assert at("import", str(file)).returncode == 0
    done = at("history", "gpt2")
    assert done.returncode == 0 and "torch-eager" in done.stdout and "cpu/jax" not in done.stdout


def test_so_is_one_that_nobody_judged_when_it_was_measured(at: Any, tmp_path: Path) -> None:
    measured(tmp_path, compiling(make_session(6)))
    assert "cpu/jax" not in at("history", "gpt2").stdout
    measured(tmp_path, make_session(6, id="20261122T090000-fabricated", started=1_795_338_000.0))
    done = at("history", "gpt2", "--stack", "jax")
    assert "20261122T090000" in done.stdout and "20261121T090000" not in done.stdout


def test_one_session_that_cannot_be_judged_is_told_and_ends_nothing(at: Any, tmp_path: Path) -> None:
    bad = make_session(6)
    probes = {"peak": 7, "threads": "many", "slope": [], "region": 3, "precision": []}
    processes = tuple(replace(p, evidence=replace(p.evidence, probes=probes)) for p in bad.processes)
    measured(tmp_path, replace(bad, processes=processes))
    measured(tmp_path, make_session(6, id="20261122T090000-fabricated", started=1_795_338_000.0))
    done = at("history", "gpt2")
    assert done.returncode == 0, done.stderr
    assert "20261121T090000-fabricated is left out: it cannot be judged" in done.stderr
    assert "20261122T090000" in done.stdout and "20261121T090000" not in done.stdout


def sessions(tmp_path: Path, *scales: float) -> None:
    for n, scale in enumerate(scales):
        day = f"202611{10 + n}T090000-fabricated"
        measured(tmp_path, make_session(10, id=day, started=1.79e9 + 86_400.0 * n, scale=scale, seed=n))


@pytest.mark.parametrize(
    ("scales", "code"),
    [((1.0, 1.2), 0), ((1.0, 1.5), 1), ((1.0, 1.01, 0.99, 1.2), 1), ((1.0, 1.1, 0.9, 1.2), 0)],
    ids=["two sessions", "by half", "three that agree", "three that do not"],
)
def test_a_gate_counts_a_small_change_where_it_is_known_how_far_sessions_lie_apart(
    scales: tuple[float, ...], code: int, at: Any, tmp_path: Path
) -> None:
    sessions(tmp_path, *scales)
    done = at("history", "gpt2", "--stack", "jax", "--gate")
    assert done.returncode == code, done.stdout + done.stderr
    assert ("does not fail the gate" in done.stderr) == (scales == (1.0, 1.2))


def test_what_others_did_to_the_machine_is_said_and_no_small_change_fails(at: Any, tmp_path: Path) -> None:
    sessions(tmp_path, 1.0, 1.01, 0.99)
    last = make_session(10, id="20261120T090000-fabricated", started=1.795e9, scale=1.2, seed=9)
    measured(tmp_path, replace(last, processes=tuple(replace(p, foreign=0.5) for p in last.processes)))
    done = at("history", "gpt2", "--stack", "jax", "--gate")
    assert done.returncode == 0 and "others used up to 50 %" in done.stdout, done.stdout


def failing(session: Session) -> Session:
    """Its rows of jax raise before they are timed."""

    def worse(p: Any) -> Any:
        ended = replace(p.evidence, status="failed", reason="ValueError: no", samples=())
        return replace(p, evidence=ended) if p.cell.label == "jax" else p

    return replace(session, processes=tuple(map(worse, session.processes)))


@pytest.mark.parametrize(
    ("worse", "says"), [(failing, "jax is failed in 2"), (compiling, "jax is void in 2")]
)
def test_a_row_without_a_time_in_the_newest_session_is_no_row_without_a_change(
    at: Any, tmp_path: Path, worse: Callable[[Session], Session], says: str
) -> None:
    sessions(tmp_path, 1.0, 1.0)
    assert at("history", "gpt2", "--stack", "jax", "--gate").returncode == 0
    newest = make_session(10, id="20261113T090000-fabricated", started=1.79e9 + 3 * 86_400.0, seed=3)
    measured(tmp_path, worse(newest))
    done = at("history", "gpt2", "--stack", "jax", "--gate")
    assert done.returncode == 1 and says in done.stdout and says in done.stderr
    assert "No change seen" not in done.stdout
    # Behind one in which it is well again, nothing is lost.
    again = make_session(10, id="20261114T090000-fabricated", started=1.79e9 + 4 * 86_400.0, seed=4)
    measured(tmp_path, again)
    done = at("history", "gpt2", "--stack", "jax", "--gate")
    assert done.returncode == 0 and "No change seen in 1 row" in done.stdout


def test_a_strangers_void_row_takes_nothing_from_what_was_measured_here(at: Any, tmp_path: Path) -> None:
    sessions(tmp_path, 1.0, 1.0)
    file = tmp_path / "file.jsonl"
    newest = make_session(10, id="20261113T090000-fabricated", started=1.79e9 + 3 * 86_400.0, seed=3)
    file.write_bytes(b"".join(session_lines(compiling(newest))))
    assert at("import", str(file)).returncode == 0
    assert at("history", "gpt2", "--stack", "jax", "--gate").returncode == 0


@pytest.mark.parametrize("asked", [("gpt3",), ("gpt2", "--stack", "jaxx"), ("--cell", "gpt2/papr")])
def test_a_gate_that_looks_at_nothing_is_not_passed(at: Any, tmp_path: Path, asked: tuple[str, ...]) -> None:
    sessions(tmp_path, 1.0, 1.0)
    assert at("history", *asked).returncode == 0
    done = at("history", *asked, "--gate")
    assert done.returncode == 2 and "the gate looked at nothing" in done.stderr


def test_a_gate_says_what_it_holds_against_nothing(at: Any, tmp_path: Path) -> None:
    sessions(tmp_path, 1.0)
    done = at("history", "gpt2", "--stack", "jax", "--gate")
    assert done.returncode == 0 and "cpu/jax against no earlier session" in done.stderr
