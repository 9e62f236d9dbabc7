"""Rows under an arm are stored, exported, imported and listed like any; what older versions wrote reads as before."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa
from fabricate import make_session

from detente.records.arm import NO_ARM, arm_of
from detente.store import tables
from detente.store.files import FORMS
from detente.store.history import history
from detente.store.imports import import_session
from detente.store.lines import session_lines
from detente.store.sessions import open_store

NOW = 1_795_300_000.0
OFF = arm_of({"donation": "off"})


def with_arm():
    """The session of ``make_session`` with its twin's processes as those of an arm."""
    session = make_session(blocks=5)
    cells = {c: replace(c, arm=OFF, label="jax[donation=off]") for c in session.planned if "#" in c.label}
    return replace(
        session,
        planned=tuple(cells.get(c, c) for c in session.planned),
        aa=None,
        processes=tuple(replace(p, cell=cells.get(p.cell, p.cell)) for p in session.processes),
    )


def without_the_key(text: str) -> str:
    """A line as a version wrote it that knew no arms."""
    assert '"arm":' in text
    return json.dumps(json.loads(text, object_hook=lambda d: {k: v for k, v in d.items() if k != "arm"}))


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path) as store:
        yield store


def test_an_arm_comes_back_from_the_database_and_from_a_file(store, tmp_path):
    session = with_arm()
    store.write_session(session)
    assert store.read_session() == session
    file = tmp_path / "session.jsonl"
    file.write_bytes(b"".join(session_lines(session)))
    with open_store(tmp_path / "other") as other:
        import_session(file, tmp_path / "spools", NOW, other)
        back = other.read_session()
    assert {c.arm for c in back.planned} == {NO_ARM, OFF}
    assert [p.cell for p in back.processes] == [p.cell for p in session.processes]


@pytest.mark.parametrize("form", ["google-benchmark", "pyperf"])
def test_an_export_names_the_arm(form):
    text = b"".join(FORMS[form](with_arm())).decode()
    assert "gpt2/tiny/train-step/fp32/cpu/jax[donation=off]" in text


def test_history_has_an_arm_only_when_it_is_asked_for(store):
    store.write_session(with_arm())
    assert [s.cell.rsplit("/", 1)[1] for s in history(store)] == ["jax", "torch-eager"]
    (series,) = history(store, stack="jax[donation=off]")
    assert series.cell.endswith("/jax[donation=off]") and len(series.points[0].medians) == 5
    (plain,) = history(store, stack="jax")
    assert len(plain.points[0].medians) == 5, "an arm's time is none of its stack's"


def test_a_file_of_an_older_version_reads_as_before(store, tmp_path):
    session = make_session(blocks=2)
    file = tmp_path / "old.jsonl"
    lines = b"".join(session_lines(session)).decode().splitlines()
    file.write_text("".join(without_the_key(line) + "\n" for line in lines))
    import_session(file, tmp_path / "spools", NOW, store)
    back = store.read_session()
    assert back.planned == session.planned and back.processes == session.processes


def test_a_database_of_an_older_version_reads_as_before(store):
    session = make_session(blocks=2)
    store.write_session(session)
    with store.engine.begin() as connection:
        for table, column in ((tables.sessions, "head"), (tables.processes, "body")):
            for id_, text in connection.execute(sa.select(table.c.id, table.c[column])).all():
                connection.execute(
                    sa.update(table).where(table.c.id == id_).values({column: without_the_key(text)})
                )
    assert store.read_session() == session
    # Written again by this version it is still the same session, and nothing is stored twice.
    store.write_session(session)
    assert store.read_session() == session
