"""Opening the database, and saying in one line what is wrong with it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from detente.records.fault import StoreFault
from detente.store import tables
from detente.store.spool import disk_fault

NAME = "detente.db"
# Another session's transaction is a few milliseconds; a backup may take a while.
_WAIT_S = 30


def connect(folder: Path) -> sa.Engine:
    """The engine of ``folder/detente.db``, created or brought up to date. Raises StoreFault when the folder
    cannot be written, the file is damaged or is another program's, or a newer version wrote it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_fault("make the folder", folder, error) from error
    path = folder / NAME
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": _WAIT_S})
    sa.event.listen(engine, "connect", _configure)
    sa.event.listen(engine, "begin", _begin)
    with faults(path):
        _prepare(engine, path)
    return engine


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that will write: it takes its turn at the start, so that two writers wait for one another
    instead of failing half way."""
    with (
        faults(Path(engine.url.database or "")),
        engine.connect().execution_options(write=True) as connection,
        connection.begin(),
    ):
        yield connection


@contextlib.contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that only reads. It sees one state, and neither waits for writers nor makes them wait."""
    with faults(Path(engine.url.database or "")), engine.connect() as connection:
        yield connection


@contextlib.contextmanager
def faults(path: Path) -> Iterator[None]:
    """Whatever SQLite says, as a StoreFault with one line and what to do."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _fault(path, str(error.orig)) from error
    except sqlite3.Error as error:
        raise _fault(path, str(error)) from error
    except OverflowError as error:
        raise StoreFault(
            f"a number does not fit into the database {path}: {error}", "the session was damaged"
        ) from error


# Part of SQLite's message -> (what happened, what to do).
_KEPT = "every session is also a .jsonl file beside it, and none is lost"
# Whoever lists or compares sessions fills a database that lacks some: nothing need be imported.
_ANEW = f"move it away, and `detente sessions` makes another one: {_KEPT}"
_SAID = (
    (
        "not a database",
        "is not a database, or is damaged",
        _ANEW,
    ),
    ("malformed", "is damaged", _ANEW),
    ("disk is full", "cannot grow: the disk is full", f"free some space and go on: {_KEPT}"),
    ("disk I/O error", "cannot be written: the disk is full or failing", f"look at the disk: {_KEPT}"),
    ("readonly", "cannot be written", "choose a folder that you may write to with DETENTE_HOME"),
    ("unable to open", "cannot be opened", "choose a folder that you may write to with DETENTE_HOME"),
    ("locked", f"was locked by another program for {_WAIT_S} s", "end what holds it, or wait, and try again"),
)


def _fault(path: Path, said: str) -> StoreFault:
    for part, what, hint in _SAID:
        if part in said:
            return StoreFault(f"the database {path} {what} ({said})", hint)
    return StoreFault(f"the database {path} failed: {said}", f"{_KEPT}; please report this")


def _configure(connection: sqlite3.Connection, _: object) -> None:
    # Python's own transaction handling would begin too late; `_begin` does it.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    # A commit is on the disk when it returns; WAL alone would let a power cut take the last ones.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _prepare(engine: sa.Engine, path: Path) -> None:
    _use_wal(engine)
    with engine.connect().execution_options(write=True) as connection, connection.begin():
        there = set(sa.inspect(connection).get_table_names())
        if not there:
            tables.metadata.create_all(connection)
            connection.execute(sa.insert(tables.meta).values(key="version", value=str(tables.VERSION)))
            return
        if tables.meta.name not in there:
            raise StoreFault(
                f"the database {path} is not one of detente's", "choose another folder with DETENTE_HOME"
            )
        found = int(
            connection.execute(
                sa.select(tables.meta.c.value).where(tables.meta.c.key == "version")
            ).scalar_one()
        )
        if found > tables.VERSION:
            raise StoreFault(
                f"the database {path} was written by a newer detente (schema {found}; this one knows {tables.VERSION})",
                "use the newer version, or another folder with DETENTE_HOME",
            )
        for version in range(found, tables.VERSION):
            tables.MIGRATIONS[version](connection)
            connection.execute(
                sa.update(tables.meta).where(tables.meta.c.key == "version").values(value=str(version + 1))
            )


def _use_wal(engine: sa.Engine) -> None:
    """Write-ahead log: readers never wait. The change itself needs the file alone, and SQLite does not wait
    for that by itself, so two processes that open a new store at once must take turns here."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        finally:
            raw.close()
