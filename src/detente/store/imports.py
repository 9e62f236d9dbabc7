"""Import: a stranger's file becomes a session here, marked as imported, or one refusal and nothing at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from detente.records.codec import dumps
from detente.records.fault import StoreFault
from detente.records.session import Process, Session
from detente.store.lines import identity, session_lines
from detente.store.spool import LARGEST_FILE, disk_fault, parse_spool


@dataclass(frozen=True)
class Imported:
    """What an import did. ``new`` processes were not here before; ``torn`` as in ``Parsed``."""

    session: Session
    new: int
    torn: str


class Keeper(Protocol):
    """What an import needs of a store."""

    def write_session(self, session: Session) -> None: ...


def import_session(
    file: Path | str,
    spools: Path,
    now: float,
    store: Keeper | None,
    *,
    most: int = LARGEST_FILE,
    try_out: Callable[[Session], None] = lambda session: None,
) -> Imported:
    """Take the session in ``file`` (a spool, or what ``export`` wrote) among the ``spools`` and into the store.

    ``try_out`` may raise: it is called with the session before anything is kept, e.g. to judge it. A file that is
    imported twice changes nothing; a longer export of a session that was imported before adds what is new: processes,
    and what was amended meanwhile (rows that rest or are skipped, how often somebody looked, the end).

    Raises StoreFault when the file is no sound session of at most ``most`` bytes, when another session has its id, or
    when it would change a session that was measured here.
    """
    parsed = parse_spool(file, most)
    # Whatever the file says of itself: this is where a session becomes one that was not measured here.
    session = replace(parsed.session, imported=now)
    place = spools / f"{session.id}.jsonl"
    there = parse_spool(place).session if os.path.lexists(place) else None
    new = session.processes if there is None else _new(there, session)
    if there is None:
        try_out(session)
        _write(session, place, exclusive=True)
    elif there.imported is None:
        if new:
            raise StoreFault(
                f"session {session.id} was measured here, and the file holds {len(new)} processes that were not",
                "change the id in the file's first line to keep both",
            )
        return Imported(there, 0, parsed.torn)
    else:
        session = _grown(there, session, new)
        try_out(session)
        if session != there:
            _write(session, place, exclusive=False)
    if store is not None:
        store.write_session(session)
    return Imported(session, len(new), parsed.torn)


def _grown(there: Session, session: Session, new: tuple[Process, ...]) -> Session:
    """What is here with what the file has besides: of all that is amended while a session runs, the later word. A file
    without a new process may still have the session's end, or be an older one."""
    later = max(there, session, key=lambda s: (len(s.processes), s.ended or 0.0))
    return replace(
        there,
        processes=(*there.processes, *new),
        skipped={**there.skipped, **session.skipped},
        rested={**there.rested, **session.rested},
        looked=max(there.looked, session.looked),
        ended=_latest(there.ended, session.ended),
        note=later.note,
    )


def _latest(a: float | None, b: float | None) -> float | None:
    known = [moment for moment in (a, b) if moment is not None]
    return max(known, default=None)


def _new(there: Session, session: Session) -> tuple[Process, ...]:
    """The processes of ``session`` that are not there. Raises StoreFault when it is another session."""
    if (there.started, there.fingerprint, there.planned) != (
        session.started,
        session.fingerprint,
        session.planned,
    ):
        raise StoreFault(
            f"another session with the id {session.id} is stored already",
            "it differs in its start, fingerprint or plan; change the id in the file's first line to keep both",
        )
    # Compared as text: a loss that is not a number differs from itself.
    known = {identity(p): dumps(p) for p in there.processes}
    changed = next((p for p in session.processes if known.get(identity(p), text := dumps(p)) != text), None)
    if changed is not None:
        raise StoreFault(
            f"a process of session {session.id} is stored with other values: {changed.kind} of {changed.cell.key}, "
            f"block {changed.block + 1}",
            "one of the two files was changed; `detente sessions show` tells of the stored one",
        )
    return tuple(p for p in session.processes if identity(p) not in known)


def _write(session: Session, place: Path, *, exclusive: bool) -> None:
    """The spool of an imported session: there whole, or not at all."""
    temporary = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".import.", delete=False) as out:
            temporary = out.name
            for line in session_lines(session):
                out.write(line)
            out.flush()
            os.fsync(out.fileno())
        if exclusive:
            _link(temporary, place)
        else:
            os.replace(temporary, place)
    except FileExistsError:
        raise StoreFault(
            f"{place} was made meanwhile", "another import of this session is under way: try again"
        ) from None
    except OSError as error:
        raise disk_fault("write", place, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _link(temporary: str, place: Path) -> None:
    try:
        os.link(temporary, place)
    except OSError as error:
        # Some file systems have no links; what is lost is only the certainty that two imports do not meet.
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.replace(temporary, place)
