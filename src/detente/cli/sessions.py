"""Find a session by name: in the database, among the spools, or as a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from detente.records.fault import StoreFault, UsageFault
from detente.records.folders import data_folder
from detente.records.session import Session
from detente.store.spool import read_spool


def find_session(name: str) -> Session:
    """``latest``, the beginning of a session's id, or the path of an exported file.

    The spool is read before the database: it is the truth, and it is there when the database is not. Raises
    UsageFault when nothing or more than one thing is meant.
    """
    if name.endswith(".jsonl") or "/" in name:
        return read_spool(Path(name))
    folder = data_folder() / "sessions"
    spools = sorted(folder.glob("*.jsonl")) if name == "latest" else sorted(folder.glob(f"{name}*.jsonl"))
    if name == "latest" and spools:
        return read_spool(spools[-1])
    if len(spools) == 1:
        return read_spool(spools[0])
    if len(spools) > 1:
        raise UsageFault(
            f"{len(spools)} sessions begin with {name!r}",
            "give more of the id: " + ", ".join(p.stem for p in spools[-5:]),
        )
    if importlib.util.find_spec("sqlalchemy") is not None and (data_folder() / "detente.db").exists():
        from detente.store.sessions import open_store

        return open_store(data_folder()).read_session(name)
    raise StoreFault(f"there is no session {name!r} in {folder}", "`detente compare gpt2` makes one")
