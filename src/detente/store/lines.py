"""The one text format of a session: JSON lines, schema ``detente/session/1``. Standard library only.

Line 1 is the session without its processes. Every further line is one finished process, or an amendment of
the head (``ended``, ``note``, ``skipped``: what is only known later). Each line names its own schema, so a
file can be cut, joined and read with grep. The spool that a running session writes and the file that
``export`` writes are the same format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from detente.records.codec import dumps, from_json
from detente.records.fault import StoreFault
from detente.records.session import Process, Session

SESSION, PROCESS, AMENDMENT = "detente/session/1", "detente/process/1", "detente/amendment/1"


_START = b'{"schema":"detente/session/'


@dataclass(frozen=True)
class Amendment:
    """A later change of the head. None leaves a field as it is; ``skipped`` and ``rested`` add to what is there."""

    ended: float | None = None
    note: str | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    rested: dict[str, str] = field(default_factory=dict)

    def apply(self, session: Session) -> Session:
        """The session with this amendment in it."""
        return replace(
            session,
            ended=session.ended if self.ended is None else self.ended,
            note=session.note if self.note is None else self.note,
            skipped={**session.skipped, **self.skipped},
            rested={**session.rested, **self.rested},
        )


def head_line(session: Session) -> bytes:
    """The first line: the session without its processes."""
    return _line(dumps(replace(session, processes=()), SESSION))


def process_line(process: Process) -> bytes:
    """The line of one finished process."""
    return _line(dumps(process, PROCESS))


def amendment_line(amendment: Amendment) -> bytes:
    """The line of a later change of the head."""
    return _line(dumps(amendment, AMENDMENT))


def session_lines(session: Session) -> Iterator[bytes]:
    """A whole session, line by line."""
    yield head_line(session)
    yield from map(process_line, session.processes)


def parse_lines(lines: Iterable[bytes], source: str) -> tuple[Session, int]:
    """The session in these lines, and the number of bytes that make it.

    A process that dies while it writes leaves a torn *last* line; that line is not part of the session and
    the byte count stops before it. A broken line anywhere else, a first line that is not a head, or a
    schema that this version does not know raises StoreFault with the line's number.
    """
    session: Session | None = None
    processes: list[Process] = []
    good = 0
    torn: str | None = None
    for number, line in enumerate(lines, 1):
        if torn is not None:
            raise StoreFault(torn, "the lines before it are sound: cut the file there and read it again")
        # A line that was cut anywhere before its last brace does not parse; one that lost only its newline
        # does.
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == 1 and line[: len(_START)] != _START[: len(line)]:
                hint = "`detente export` and a running session write such files"
                raise StoreFault(f"{source} is not a session file", hint) from None
            torn = f"{source}, line {number} is not a line of a session: {error}"
            continue
        try:
            record = _record(data, source, number)
        except (ValueError, RecursionError) as error:
            raise StoreFault(
                f"{source}, line {number}: {error}", "the file was changed by hand, or is not ours"
            ) from None
        if number == 1:
            if not isinstance(record, Session):
                raise StoreFault(
                    f"{source} does not begin with a session", f"line 1 must have the schema {SESSION}"
                )
            session = record
            processes.extend(record.processes)
        elif isinstance(record, Process):
            processes.append(record)
        elif isinstance(record, Amendment) and session is not None:
            session = record.apply(session)
        else:
            raise StoreFault(f"{source} has a second session at line {number}", "export one session per file")
        good += len(line)
    if session is None:
        raise StoreFault(f"{source} holds no session: {'its only line is torn' if torn else 'it is empty'}")
    return replace(session, processes=tuple(processes)), good


_KINDS: dict[str, type] = {SESSION: Session, PROCESS: Process, AMENDMENT: Amendment}


def _record(data: Any, source: str, number: int) -> Session | Process | Amendment:
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, str) and schema in _KINDS:
        return from_json(_KINDS[schema], data, f"{source}:{number}")
    name, _, version = str(schema).rpartition("/")
    if version.isdigit() and f"{name}/1" in _KINDS:
        raise StoreFault(
            f"{source}, line {number} was written by a newer detente (schema {schema})",
            f"this version reads {name}/1: read the file with the newer one",
        )
    raise StoreFault(
        f"{source}, line {number} is not a line of a detente session (schema {schema!r})",
        f'a session file begins with {{"schema": "{SESSION}"',
    )


def _line(text: str) -> bytes:
    return text.encode() + b"\n"
