"""A session that is imported while it runs, and again when it is over, is the one that is imported at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fabricate import make_session

from detente.records.session import Session
from detente.store.imports import import_session
from detente.store.lines import session_lines
from detente.store.sessions import open_store
from detente.store.spool import read_spool

NOW = 1_800_000_000.0


def whole() -> Session:
    """Five blocks, of which a row has one: it let the others go first; somebody looked once."""
    session = make_session(blocks=5)
    resting = next(c for c in session.planned if c.label == "torch-eager")
    processes = tuple(p for p in session.processes if p.cell != resting or p.block == 0)
    return replace(
        session, processes=processes, rested={resting.key: "lets others go first"}, looked=1, note="x"
    )


def early(session: Session, rested: bool = False) -> Session:
    """As it stood behind its first block."""
    processes = tuple(p for p in session.processes if p.block == 0)
    kept = session.rested if rested else {}
    return replace(session, processes=processes, rested=kept, looked=0, ended=None, note="")


def brought(tmp_path: Path, *parts: Session) -> Session:
    for number, part in enumerate(parts):
        file = tmp_path / f"{number}.jsonl"
        file.write_bytes(b"".join(session_lines(part)))
        with open_store(tmp_path / "store") as store:
            import_session(file, tmp_path / "spools", NOW, store)
    with open_store(tmp_path / "store") as store:
        stored = store.read_session(parts[0].id)
    assert read_spool(tmp_path / "spools" / f"{parts[0].id}.jsonl") == stored
    return stored


@pytest.mark.parametrize("order", [(0, 1), (0, 2, 1), (2, 0, 1), (1, 0), (0, 1, 2)])
def test_the_parts_make_the_whole(order: tuple[int, ...], tmp_path: Path) -> None:
    session = whole()
    parts = (early(session), session, early(session, rested=True))
    found = brought(tmp_path, *(parts[i] for i in order))
    assert found == replace(session, imported=NOW)
    assert found.whole_blocks() == (0, 1, 2, 3, 4) and found.looked == 1


def test_an_end_without_a_new_process_is_taken(tmp_path: Path) -> None:
    session = whole()
    found = brought(tmp_path, replace(session, ended=None, looked=0, note="interrupted"), session)
    assert (found.ended, found.looked, found.note) == (session.ended, 1, "x")


def test_an_older_file_takes_nothing_back(tmp_path: Path) -> None:
    session = whole()
    found = brought(tmp_path, session, replace(session, ended=None, looked=0, note="interrupted"))
    assert (found.ended, found.looked, found.note) == (session.ended, 1, "x")
