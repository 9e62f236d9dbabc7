"""`detente sessions`, and readers that survive whatever is in the store already."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
from fabricate import make_session

from detente.records.program import Program
from detente.records.session import Session
from detente.store.sessions import open_store
from detente.store.spool import Spool

OTHER = "20261120T090000-another"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / "data"


@pytest.fixture
def at(detente: Any, tmp_path: Path) -> Callable[..., Any]:
    return lambda *arguments, **environment: detente(
        *arguments, DETENTE_HOME=str(tmp_path / "home"), **environment
    )


def keep(folder: Path, *sessions: Session) -> None:
    with open_store(folder) as store:
        for session in sessions:
            Spool.create(folder / "sessions", session).close()
            store.write_session(session)


def spoil(folder: Path, name: str, columns: dict[str, Any]) -> None:
    """What an older version, or a broken disk, left in the database."""
    (folder / "sessions" / f"{name}.jsonl").unlink(missing_ok=True)
    with sqlite3.connect(folder / "detente.db") as database:
        for column, value in columns.items():
            database.execute(f"UPDATE sessions SET {column} = ? WHERE id = ?", (value, name))
            if column == "id":
                database.execute("UPDATE processes SET session_id = ? WHERE session_id = ?", (value, name))


BAD: dict[str, dict[str, Any]] = {
    "a date beyond all": {"started": 1e300},
    "a head that is no JSON": {"head": "{"},
    "a head that is a list": {"head": "[1]"},
    "a head of another kind": {"head": '{"schema":"x"}'},
    "a date beyond all in the head": {"head": '{"imported": 1e300}'},
    "an id that leaves the folder": {"id": "../../evil"},
}


def test_bad_rows_are_named_and_left_out(at: Any, folder: Path) -> None:
    """All of them in one store, beside a good session."""
    names = {what: f"20261120T09000{i}-another" for i, what in enumerate(BAD)}
    keep(folder, make_session(6), *(make_session(5, id=n, started=1.79e9) for n in names.values()))
    for what, name in names.items():
        spoil(folder, name, BAD[what])
    for command in (("history",), ("sessions", "list"), ("history", "--format", "json"), ("report",)):
        done = at(*command)
        assert done.returncode == 0, (command, done.stderr)
        assert "20261121T090000-fabricated" in done.stdout
    listed = at("sessions", "list").stdout
    for what, name in names.items():
        id = BAD[what].get("id", name)
        assert f"{id:22} cannot be read" in listed, (what, listed)
        told = at("report", name)
        assert told.returncode in ((0,) if "started" in BAD[what] else (2, 3)), (what, told.stderr)
        # It can be removed, and then nothing is said of it any more.
        done = at("sessions", "remove", id)
        assert done.returncode == 0, (what, done.stderr)
    assert "cannot be read" not in at("sessions", "list").stdout
    assert at("history").stderr == ""


def test_a_bad_process_in_the_database_is_a_refusal(at: Any, folder: Path) -> None:
    keep(folder, make_session(5))
    (folder / "sessions" / f"{make_session().id}.jsonl").unlink()
    with sqlite3.connect(folder / "detente.db") as database:
        database.execute("UPDATE processes SET body = '{\"kind\": 7}' WHERE number = 3")
    done = at("report")
    assert done.returncode == 3, done.stderr
    assert "cannot be read from the database" in done.stderr and "sessions remove" in done.stderr


def test_a_spool_that_cannot_be_read_is_listed(at: Any, folder: Path) -> None:
    keep(folder, make_session(5))
    (folder / "sessions" / "broken.jsonl").write_text("what is this\n")
    (folder / "sessions" / "named.jsonl").write_bytes(
        (folder / "sessions" / f"{make_session().id}.jsonl").read_bytes()
    )
    told = at("sessions", "list").stdout
    assert "broken" in told and "is not a session file" in told
    assert "named" in told and "a spool" not in told  # the line, not the hint
    for id in ("broken", "named"):
        assert at("sessions", "remove", id).returncode == 0
    assert at("sessions", "list").stdout.count("\n") == 1


def test_remove_deletes_rows_spool_logs_and_its_own_artefacts(at: Any, folder: Path) -> None:
    def with_programs(session: Session, *names: str) -> Session:
        programs = tuple(Program("hlo", "step", n * 64, f"{n * 2}/{n * 64}", 3) for n in names)
        first = session.processes[0]
        changed = replace(first, evidence=replace(first.evidence, programs=programs))
        return replace(session, processes=(changed, *session.processes[1:]))

    mine = with_programs(make_session(5), "a", "b")
    other = with_programs(make_session(5, id=OTHER, started=1.79e9), "b", "c")
    keep(folder, mine, other)
    for n in "abc":
        path = folder / "artefacts" / (n * 2) / (n * 64)
        path.parent.mkdir(parents=True)
        path.write_text("hlo")
    logs = folder.parent / "state" / "logs"
    for id in (mine.id, other.id):
        (logs / id).mkdir(parents=True)
        (logs / id / "000-time-jax.log").write_text("")
    done = at("sessions", "remove", mine.id)
    assert done.returncode == 0 and "1 artefacts" in done.stdout, done.stderr
    assert sorted(p.name[0] for p in (folder / "artefacts").rglob("*") if p.is_file()) == ["b", "c"]
    assert [p.name for p in (folder / "sessions").iterdir()] == [f"{OTHER}.jsonl"]
    assert [p.name for p in logs.iterdir()] == [OTHER]
    with open_store(folder) as store:
        assert store.counts() == {OTHER: 15}
        assert store.read_session(OTHER) == other
    # It does not come back.
    assert mine.id not in at("history").stdout + at("sessions").stdout


@pytest.mark.parametrize("id", ["latest", "2026", "", "../../x", "*", "nothing-of-that-name"])
def test_remove_takes_the_whole_id(id: str, at: Any, folder: Path) -> None:
    keep(folder, make_session(5))
    done = at("sessions", "remove", id)
    assert done.returncode == 2, done.stderr
    assert at("sessions", "list").stdout.count("\n") == 1
    assert at("sessions", "remove").returncode == 2


def test_a_running_session_is_not_removed(at: Any, folder: Path) -> None:
    with Spool.create(folder / "sessions", make_session(5)):
        done = at("sessions", "remove", make_session().id)
        assert done.returncode == 3 and "is being written" in done.stderr
    assert at("sessions", "remove", make_session().id).returncode == 0


def test_a_linked_spool_is_unlinked_and_its_target_is_left(at: Any, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("not a session")
    (folder / "sessions").mkdir(parents=True)
    (folder / "sessions" / "linked.jsonl").symlink_to(target)
    assert at("sessions", "remove", "linked").returncode == 0
    assert target.read_text() == "not a session"
    # An import never writes through a link either.
    session = tmp_path / "session.jsonl"
    Spool.create(tmp_path / "made", make_session(5)).close()
    (tmp_path / "made" / f"{make_session().id}.jsonl").rename(session)
    (folder / "sessions" / f"{make_session().id}.jsonl").symlink_to(tmp_path / "absent")
    assert at("import", str(session)).returncode == 3
    assert not (tmp_path / "absent").exists()


def test_show_and_the_forms_of_list(at: Any, folder: Path) -> None:
    whole = make_session(5)
    bad = replace(whole.processes[-1].evidence, status="failed", reason="RuntimeError: planted")
    keep(
        folder, replace(whole, processes=(*whole.processes[:-1], replace(whole.processes[-1], evidence=bad)))
    )
    told = at("sessions", "show").stdout
    assert "measured here" in told and "14 of kind time ended ok" in told and "RuntimeError: planted" in told
    found = json.loads(at("sessions", "show", "--format", "json").stdout)
    assert found["schema"] == "detente/stored/1" and found["broken"][0]["reason"] == "RuntimeError: planted"
    (entry,) = json.loads(at("sessions", "list", "--format", "json").stdout)["sessions"]
    assert (entry["id"], entry["state"], entry["processes"], entry["imported"]) == (
        whole.id,
        "whole",
        15,
        None,
    )
    told = at("sessions", "--help").stdout
    assert "Example: detente sessions remove" in told


@pytest.mark.parametrize("damage", ["torn", "inside"])
def test_what_a_spool_lost_is_told_and_taken_from_the_database(damage: str, at: Any, folder: Path) -> None:
    whole = make_session(6)
    keep(folder, whole)
    path = folder / "sessions" / f"{whole.id}.jsonl"
    found = path.read_bytes().splitlines(keepends=True)
    if damage == "torn":
        path.write_bytes(b"".join(found)[:-40])
    else:
        path.write_bytes(b"".join([*found[:3], found[3][:60] + b"\n", *found[4:]]))
    done = at("report", whole.id, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "database" in done.stderr and "line" in done.stderr
    assert json.loads(done.stdout)["session"]["blocks"] == 6
    # Without the database: the torn one is told without its last process, and says so; the other is refused.
    os.rename(folder / "detente.db", folder / "gone")
    done = at("report", whole.id, "--format", "json")
    if damage == "torn":
        assert done.returncode == 0 and "is lost, the 17 processes before it are kept" in done.stderr
        assert json.loads(done.stdout)["session"]["blocks"] == 5
    else:
        assert done.returncode == 3 and "line 4 is not a line of a session" in done.stdout


def test_a_database_that_has_less_than_the_damaged_spool_is_not_told_instead(at: Any, folder: Path) -> None:
    whole = make_session(6)
    keep(folder, replace(whole, processes=whole.processes[:4]))
    path = folder / "sessions" / f"{whole.id}.jsonl"
    path.unlink()
    Spool.create(folder / "sessions", whole).close()
    found = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*found[:3], b"{\n", *found[4:]]))
    assert at("report", whole.id).returncode == 3


def test_a_clock_that_was_set_back_has_no_duration(at: Any, folder: Path) -> None:
    whole = make_session(5)
    keep(folder, replace(whole, ended=whole.started - 3600))
    done = at("report")
    assert done.returncode == 0 and "of unknown length (the clock was set back)" in done.stdout
    assert (
        "-3600" not in done.stdout
        and json.loads(at("report", "--format", "json").stdout)["session"]["wall_s"] is None
    )


def test_without_a_database_the_spools_are_listed(folder: Path, tmp_path: Path) -> None:
    import subprocess

    Spool.create(folder / "sessions", make_session(5)).close()
    block = (
        "import importlib.util as u, sys; real = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'sqlalchemy' else real(n, *a)\n"
        "from detente.cli import main; main(['sessions', 'list'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", block],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "DETENTE_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 0 and make_session().id in done.stdout, done.stderr
