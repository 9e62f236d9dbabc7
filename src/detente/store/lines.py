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

from detente.records.codec import SchemaError, dumps, from_json, shown
from detente.records.fault import StoreFault
from detente.records.limits import ENTRIES, LONGEST_LINE, check_record
from detente.records.session import Process, Session

SESSION, PROCESS, AMENDMENT = "detente/session/1", "detente/process/1", "detente/amendment/1"


_START = b'{"schema":"detente/session/'
# What other things begin with, and what to do with them.
_OTHER = (
    (b"\x1f\x8b", "is compressed with gzip", "`gunzip` it first"),
    (b"PK\x03\x04", "is a zip archive", "unpack it first"),
    (b"\xfd7zXZ", "is compressed with xz", "`unxz` it first"),
    (b"(\xb5/\xfd", "is compressed with zstd", "`unzstd` it first"),
    (b"\xef\xbb\xbf", "begins with a byte order mark", "save it as UTF-8 without one"),
    (b"\xff\xfe", "begins with a byte order mark", "save it as UTF-8 without one"),
    (
        b"SQLite format 3",
        "is a database",
        "`detente export` on the machine that has it writes a session file",
    ),
)


@dataclass(frozen=True)
class Amendment:
    """A later change of the head. None leaves a field as it is; ``skipped``, ``rested`` and ``looked`` add to what is
    there."""

    ended: float | None = None
    note: str | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    rested: dict[str, str] = field(default_factory=dict)
    looked: int = 0

    def apply(self, session: Session) -> Session:
        """The session with this amendment in it."""
        return replace(
            session,
            ended=session.ended if self.ended is None else self.ended,
            note=session.note if self.note is None else self.note,
            skipped={**session.skipped, **self.skipped},
            rested={**session.rested, **self.rested},
            looked=session.looked + self.looked,
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


@dataclass(frozen=True)
class Parsed:
    """A session and the bytes that make it. ``torn`` says what is wrong with a last line that is no part of it; empty
    when the file is whole."""

    session: Session
    length: int
    torn: str = ""


def parse_lines(lines: Iterable[bytes], source: str) -> Parsed:
    """The session in these lines.

    A process that dies while it writes leaves a torn *last* line; that line is not part of the session, the length
    stops before it, and ``torn`` says so. A broken line anywhere else, a first line that is not a head, a schema that
    this version does not know, a value out of its limits (records/limits.py) or a process that stands there twice
    raises StoreFault with the line's number, the field and the value.
    """
    session: Session | None = None
    processes: list[Process] = []
    seen: dict[tuple[Any, ...], int] = {}
    good, amendments = 0, 0
    torn = ""
    for number, line in enumerate(lines, 1):
        where = f"{source}, line {number}"
        if torn:
            raise StoreFault(torn, "the lines before it are sound: cut the file there and read it again")
        if number == 1:
            _refuse_other(line, source)
        if len(line) > LONGEST_LINE:
            raise StoreFault(
                f"{where} is longer than {LONGEST_LINE >> 20} MiB", "no process is: it is not one of ours"
            )
        # A line that was cut anywhere before its last brace does not parse; one that lost only its newline does.
        try:
            data = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            start = line[:80].replace(b" ", b"")
            if number == 1 and start[: len(_START)] != _START[: len(start)]:
                hint = "`detente export` and a running session write such files"
                raise StoreFault(f"{source} is not a session file", hint) from None
            torn = f"{where} is not a line of a session: {str(error) or type(error).__name__}"
            continue
        try:
            record = _record(data, source, number)
            if number == 1 and isinstance(record, Session):
                session = record
                if record.processes:
                    raise SchemaError("the head holds processes: each is a line of its own")
            elif number == 1:
                raise SchemaError(f"the file does not begin with a session ({SESSION})")
            elif isinstance(record, Process):
                _once(record, number, seen)
                processes.append(record)
                if len(processes) > ENTRIES * 10:
                    raise SchemaError(f"there are more than {ENTRIES * 10:,} processes")
            elif isinstance(record, Amendment) and session is not None:
                amendments += 1
                if amendments > ENTRIES:
                    raise SchemaError(f"there are more than {ENTRIES:,} amendments")
                session = record.apply(session)
                check_record(session, "Session")
            else:
                raise SchemaError("a second session begins: export one session per file")
        except (ValueError, RecursionError) as error:
            said = str(error) or type(error).__name__
            raise StoreFault(f"{where}: {said}", "the file was changed by hand, or is not ours") from None
        good += len(line)
    if session is None:
        raise StoreFault(
            f"{source} holds no session: {'its only line is torn' if torn else 'it is empty'}",
            "`detente export` writes a file that can be imported; copy it once more",
        )
    return Parsed(replace(session, processes=tuple(processes)), good, torn)


def _refuse_other(line: bytes, source: str) -> None:
    for start, what, hint in _OTHER:
        if line.startswith(start):
            raise StoreFault(f"{source} {what}: it is not a session file", hint)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def identity(process: Process) -> tuple[str, str, int, float]:
    """What tells one process of a session from another: no two begin at the same moment with the same cell."""
    return process.cell.key, process.kind, process.block, process.started


def _once(process: Process, number: int, seen: dict[tuple[Any, ...], int]) -> None:
    first = seen.setdefault(identity(process), number)
    if first != number:
        raise SchemaError(f"it repeats the process of line {first}")


_KINDS: dict[str, type] = {SESSION: Session, PROCESS: Process, AMENDMENT: Amendment}


def _record(data: Any, source: str, number: int) -> Session | Process | Amendment:
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, str) and schema in _KINDS:
        kind = _KINDS[schema]
        record = from_json(kind, data)
        check_record(record, kind.__name__)
        return record
    name, _, version = str(schema).rpartition("/")
    if version.isdigit() and f"{name}/1" in _KINDS:
        raise StoreFault(
            f"{source}, line {number} was written by a newer detente (schema {shown(schema)})",
            f"this version reads {name}/1: read the file with the newer one",
        )
    raise StoreFault(
        f"{source}, line {number} is not a line of a detente session (schema {shown(schema)})",
        f'a session file begins with {{"schema": "{SESSION}"',
    )


def _line(text: str) -> bytes:
    return text.encode() + b"\n"
