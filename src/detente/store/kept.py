"""The best that is left of a session: its spool, or the database's copy where the spool is torn or damaged."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from detente.records.fault import Fault, StoreFault
from detente.records.session import Session
from detente.store.files import export_session, process_lines
from detente.store.spool import disk_fault, parse_spool


@dataclass(frozen=True)
class Kept:
    """A session and, where its file was not whole, one line that says what happened. ``copied``: it was read from the
    database."""

    session: Session
    note: str = ""
    copied: bool = False


def read_kept(spool: Path, data: Path) -> Kept:
    """The session of a spool in the data folder ``data``. Raises StoreFault when the spool is damaged and the database
    has no copy that is at least as long."""
    try:
        parsed = parse_spool(spool)
    except StoreFault as fault:
        copy = copy_of(spool.stem, data)
        # All of its lines but the damaged one must be there, or the copy would hide what the file still has.
        if copy is None or len(copy.processes) < process_lines(spool) - 1:
            raise
        told = f"told from the database's copy, which has {len(copy.processes)} processes"
        return Kept(copy, f"{fault.message}; {told}", copied=True)
    if not parsed.torn:
        return Kept(parsed.session)
    copy = copy_of(spool.stem, data)
    if copy is not None and len(copy.processes) > len(parsed.session.processes):
        return Kept(
            copy, f"{parsed.torn}; the database has that process, and it is told from there", copied=True
        )
    left = len(parsed.session.processes)
    return Kept(
        parsed.session,
        f"{parsed.torn}; what was being written there is lost, the {left} processes before it are kept",
    )


def mend(spool: Path, data: Path) -> str:
    """Make a torn or damaged spool whole again from the database's copy, where that has more. The damaged file is kept
    beside it. Returns the line that says what happened, or nothing. Raises StoreFault as ``read_kept`` does."""
    kept = read_kept(spool, data)
    if kept.copied:
        damaged = spool.with_name(f"{spool.name}.damaged")
        try:
            os.replace(spool, damaged)
        except OSError as error:
            raise disk_fault("move", spool, error) from error
        export_session(kept.session, spool)
        return f"{kept.note}; the damaged file is {damaged}"
    return kept.note


def copy_of(id: str, data: Path) -> Session | None:
    """The database's copy of a session; None where there is none that can be read."""
    if importlib.util.find_spec("sqlalchemy") is None or not (data / "detente.db").exists():
        return None
    from detente.store.sessions import open_store

    with contextlib.suppress(Fault), open_store(data) as store:
        return store.read_session(id) if id in store.counts() else None
    return None
