"""Find a session by name: in the database, among the spools, or as a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from detente.records.fault import StoreFault, UsageFault
from detente.records.folders import data_folder
from detente.records.session import Session
from detente.store.bundle import open_bundle
from detente.store.spool import read_spool


def find_session(name: str) -> Session:
    """``latest``, the beginning of a session's id, or the path of an exported file.

    The spool is read before the database: it is the truth, and it is there when the database is not. Raises
    UsageFault when nothing or more than one thing is meant.
    """
    if name.endswith((".jsonl", ".zip")) or "/" in name:
        with open_bundle(Path(name)) as bundle:
            return read_spool(bundle.session_file)
    spools = _spools(name)
    if len(spools) == 1:
        return read_spool(spools[0])
    if len(spools) > 1:
        raise _ambiguous(name, spools)
    if importlib.util.find_spec("sqlalchemy") is not None and (data_folder() / "detente.db").exists():
        from detente.store.sessions import open_store

        return open_store(data_folder()).read_session(name)
    raise StoreFault(f"there is no session {name!r} in {_folder()}", "`detente compare gpt2` makes one")


def find_spool(name: str) -> Path:
    """The spool that ``--resume`` continues: ``latest`` or the beginning of a session's id. Raises UsageFault."""
    spools = _spools(name)
    if len(spools) > 1:
        raise _ambiguous(name, spools)
    if not spools:
        raise UsageFault(
            f"there is no session {name!r} in {_folder()}", "`detente history --sessions` lists them"
        )
    return spools[0]


def _folder() -> Path:
    return data_folder() / "sessions"


def _spools(name: str) -> list[Path]:
    # Ids begin with the time, so the last name is the latest session.
    return (
        sorted(_folder().glob("*.jsonl"))[-1:]
        if name == "latest"
        else sorted(_folder().glob(f"{name}*.jsonl"))
    )


def _ambiguous(name: str, spools: list[Path]) -> UsageFault:
    return UsageFault(
        f"{len(spools)} sessions begin with {name!r}",
        "give more of the id: " + ", ".join(p.stem for p in spools[-5:]),
    )
