"""Removing a session: its rows, its spool, and the artefacts that no other session names."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from detente.records.fault import MachineFault, StoreFault, UsageFault
from detente.records.limits import wrong_id
from detente.store.artefacts import Artefacts
from detente.store.spool import disk_fault, parse_spool


@dataclass(frozen=True)
class Removed:
    """What was deleted. ``note`` says why artefacts were left, where they were."""

    rows: bool
    spool: bool
    artefacts: int
    note: str = ""


def remove_session(id: str, data: Path, state: Path) -> Removed:
    """Delete the session with exactly this id, also one that cannot be read. Its logs go too.

    Raises UsageFault when there is none, StoreFault while it is being measured or when a file cannot be deleted.
    """
    # Older versions took any id; such a session has rows, and must not lead to a file.
    spool = None if wrong_id(id) else data / "sessions" / f"{id}.jsonl"
    present = spool is not None and _present(spool)
    store = _store(data)
    try:
        if not present and (store is None or id not in store.counts()):
            raise UsageFault(
                f"no session has the id {id!r}",
                "`detente sessions list` lists them; remove takes the whole id",
            )
        named, note = _artefacts(spool if present else None, id, store)
        if present and spool is not None:
            _delete(spool)
            damaged = spool.with_name(f"{spool.name}.damaged")
            if _present(damaged):
                _delete(damaged)
        rows = store.remove(id) if store is not None else False
        artefacts = Artefacts(data / "artefacts")
        others = [] if not named else sorted((data / "sessions").glob("*.jsonl"))
        gone = 0
        for sha256 in named:
            held = store is not None and store.names_artefact(sha256)
            if not held and not _in_any(sha256, others):
                with contextlib.suppress(OSError):
                    artefacts.path(sha256).unlink()
                    gone += 1
    finally:
        if store is not None:
            store.close()
    if spool is not None:
        shutil.rmtree(state / "logs" / id, ignore_errors=True)
    return Removed(rows, present, gone, note)


def _present(path: Path) -> bool:
    # A link counts as what it is: it is deleted, never what it points to.
    return path.is_symlink() or path.exists()


def _delete(path: Path) -> None:
    try:
        if path.is_file():
            with open(path, "rb") as file:
                # The writer of a running session holds the other end of this lock.
                try:
                    fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise StoreFault(
                        f"{path} is being written", "the session is running: interrupt it first"
                    ) from None
        path.unlink()
    except OSError as error:
        raise disk_fault("delete", path, error) from error


def _store(data: Path):  # type: ignore[no-untyped-def]  (Store, which needs SQLAlchemy)
    if not (data / "detente.db").exists():
        return None
    if importlib.util.find_spec("sqlalchemy") is None:
        raise MachineFault(
            f"the database {data / 'detente.db'} cannot be changed without SQLAlchemy",
            "pip install 'detente[judge]'",
        )
    from detente.store.sessions import open_store

    return open_store(data)


def _artefacts(spool: Path | None, id: str, store) -> tuple[Iterable[str], str]:  # type: ignore[no-untyped-def]
    """The artefacts that the session names. One that cannot be read names none: they are left, and that is said."""
    try:
        session = parse_spool(spool).session if spool is not None else store.read_session(id)
    except (StoreFault, UsageFault) as fault:
        return (), f"its artefacts, if it had any, are left: {fault.message}"
    return sorted({program.sha256 for p in session.processes for program in p.evidence.programs}), ""


def _in_any(sha256: str, spools: Iterable[Path]) -> bool:
    needle = sha256.encode()
    for path in spools:
        try:
            with open(path, "rb") as file:
                if any(needle in line for line in file):
                    return True
        except OSError:
            return True  # what cannot be read may name it
    return False
