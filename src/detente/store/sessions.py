"""The store: sessions in and out of the database."""

from __future__ import annotations

import difflib
import hashlib
import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from detente.records.codec import SchemaError, dumps, from_json, shown, to_json
from detente.records.evidence import Evidence
from detente.records.fault import StoreFault, UsageFault
from detente.records.limits import LAST_MOMENT, check_record
from detente.records.result import Result
from detente.records.sample import Sample, process_median
from detente.records.session import Fingerprint, Process, Session
from detente.store import tables
from detente.store.database import connect, reading, writing
from detente.store.lines import identity

# Settings in which two sessions may differ and still measure the same thing: how long, in which order, what
# else. Workload, size, contract, precision, feed and device are part of the cell that is compared. That a file of the
# user's was edited is what somebody may want to see: history says which (store/history.py).
FREE_SETTINGS = frozenset(
    [
        "seed",
        "budget_s",
        "blocks",
        "blocks_at_most",
        "left_out",
        "aa",
        "memory",
        "smallest_memory",
        "command",
        "stacks",
        "workloads",
        "size",
        "contract",
        "precision",
        "feed",
        "loader_workers",
        "device",
        "own_files",
    ]
)


@dataclass(frozen=True)
class Listed:
    """A session in a list: its head, how many processes it has, and which workloads and rows. ``imported``: when it
    was taken from a file; None where it was measured here."""

    id: str
    started: float
    ended: float | None
    processes: int
    workloads: tuple[str, ...]
    labels: tuple[str, ...]
    note: str
    imported: float | None = None


# Told of each row that cannot be read: the session's id, and why. Such a row is left out, never a crash.
Bad = Callable[[str, str], None]


def ignore(id: str, why: str) -> None:
    """For a reader that has nobody to tell."""


class Store:
    """Sessions in ``folder``: ``detente.db``. Safe for several processes at once.

    Every method raises StoreFault when the database cannot be read or written.
    """

    def __init__(self, folder: Path, engine: sa.Engine) -> None:
        self.folder, self.engine = folder, engine

    def write_session(self, session: Session) -> None:
        """Store the head, and those processes that are not there yet. Repeating it changes nothing, so a
        session that was interrupted between spool and database is made whole by writing it again.

        Raises StoreFault when another session has this id.
        """
        head = dumps(replace(session, processes=()))
        with writing(self.engine) as connection:
            found = connection.execute(
                sa.select(tables.sessions.c.head).where(tables.sessions.c.id == session.id)
            ).scalar()
            if found is None:
                row = {"id": session.id, "started": session.started, "head": head}
                row["fingerprint"] = comparable_hash(session.fingerprint)
                connection.execute(sa.insert(tables.sessions), [row])
            else:
                _same(found, session)
                connection.execute(
                    sa.update(tables.sessions).where(tables.sessions.c.id == session.id).values(head=head)
                )
            number = _count(connection, session.id)
            there = _identities(connection, session.id) if number else set()
            for process in session.processes:
                if identity(process) not in there:
                    _insert(connection, session.id, number, process)
                    number += 1

    def add_process(self, session_id: str, process: Process) -> None:
        """Store one finished process; it is on the disk when this returns."""
        with writing(self.engine) as connection:
            self._need(connection, session_id)
            _insert(connection, session_id, _count(connection, session_id), process)

    def write_judgement(self, result: Result) -> None:
        """Remember what the judge said of each row, for ``history`` and lists. The latest judgement
        counts."""
        load = result.session.load.reason if result.session.load is not None else ""
        rows = [
            {
                "session_id": result.session.id,
                "cell": f"{c.group}/{c.label}",
                "status": c.status,
                "reason": c.reason,
                "load": load,
            }
            for c in result.cells
        ]
        with writing(self.engine) as connection:
            self._need(connection, result.session.id)
            where = tables.judgements.c.session_id == result.session.id
            connection.execute(sa.delete(tables.judgements).where(where))
            if rows:
                connection.execute(sa.insert(tables.judgements), rows)

    def read_session(self, name: str = "latest") -> Session:
        """A session with everything it has: by id, by the beginning of one, or ``latest``.

        Raises UsageFault when there is none, or when several begin so.
        """
        with reading(self.engine) as connection:
            session = self._need(connection, self._find(connection, name))
            # In the order in which they ran, also when one came into the database later than its successors.
            found = sorted(_read_processes(connection, session.id), key=lambda p: p.started)
            return replace(session, processes=tuple(found))

    def list_sessions(
        self,
        *,
        workload: str | None = None,
        stack: str | None = None,
        limit: int = 50,
        bad: Bad = ignore,
    ) -> tuple[Listed, ...]:
        """The newest sessions first. One that cannot be read is told to ``bad`` and left out."""
        p, s = tables.processes.c, tables.sessions.c
        chosen = sa.select(s.id, s.head).where(sane()).order_by(s.started.desc(), s.id.desc()).limit(limit)
        if workload is not None or stack is not None:
            inner = sa.select(p.session_id).where(
                *([p.workload == workload] if workload is not None else []),
                *([p.label == stack] if stack is not None else []),
            )
            chosen = chosen.where(s.id.in_(inner))
        with reading(self.engine) as connection:
            heads = connection.execute(chosen).all()
            found = []
            tell_insane(connection, bad)
            for id_, text in heads:
                try:
                    head = _read(Session, text, id_)
                except StoreFault as fault:
                    bad(id_, fault.message)
                    continue
                found.append(
                    Listed(
                        id_,
                        head.started,
                        head.ended,
                        _count(connection, id_),
                        tuple(dict.fromkeys(c.workload for c in head.planned)),
                        tuple(dict.fromkeys(c.label for c in head.planned)),
                        head.note,
                        head.imported,
                    )
                )
        return tuple(found)

    def counts(self) -> dict[str, int]:
        """Session id -> number of processes stored."""
        s, p = tables.sessions.c, tables.processes.c
        query = (
            sa.select(s.id, sa.func.count(p.id))
            .outerjoin(tables.processes, p.session_id == s.id)
            .group_by(s.id)
        )
        with reading(self.engine) as connection:
            return {id_: number for id_, number in connection.execute(query)}

    def remove(self, id: str) -> bool:
        """Delete a session with its processes, samples and judgements, also one whose row cannot be read. False when
        there is none with exactly this id."""
        with writing(self.engine) as connection:
            found = connection.execute(sa.delete(tables.sessions).where(tables.sessions.c.id == id)).rowcount
            return found > 0

    def names_artefact(self, sha256: str) -> bool:
        """Whether any stored process names this artefact."""
        with reading(self.engine) as connection:
            query = sa.select(tables.processes.c.id).where(tables.processes.c.body.contains(sha256)).limit(1)
            return connection.execute(query).scalar() is not None

    def close(self) -> None:
        """Close the database."""
        self.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, connection: sa.Connection, name: str) -> str:
        s = tables.sessions.c
        if name == "latest":
            newest = sa.select(s.id).where(sane()).order_by(s.started.desc(), s.id.desc()).limit(1)
            found = connection.execute(newest).scalar()
            if found is None:
                raise UsageFault(f"no session is stored in {self.folder}", "`detente compare` makes one")
            return found
        exact = connection.execute(sa.select(s.id).where(s.id == name)).scalar()
        if exact is not None:
            return exact
        begin = [
            *connection.execute(
                sa.select(s.id).where(s.id.startswith(name, autoescape=True)).limit(6)
            ).scalars()
        ]
        if len(begin) == 1:
            return begin[0]
        if begin:
            raise UsageFault(
                f"several sessions begin with {name!r}: {', '.join(begin)}", "give more of the id"
            )
        everything = [*connection.execute(sa.select(s.id).order_by(s.started.desc()).limit(500)).scalars()]
        near = difflib.get_close_matches(name, everything, n=1, cutoff=0.4)
        raise UsageFault(
            f"no session begins with {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
            "`detente sessions` lists them; `latest` names the newest",
        )

    def _need(self, connection: sa.Connection, id_: str) -> Session:
        text = connection.execute(
            sa.select(tables.sessions.c.head).where(tables.sessions.c.id == id_)
        ).scalar()
        if text is None:
            raise StoreFault(
                f"no session {id_} is stored in {self.folder}", "write its head before its processes"
            )
        return _read(Session, text, id_)


def open_store(folder: Path | str) -> Store:
    """The store in ``folder``, made when it is not there. Raises StoreFault (see database.connect)."""
    folder = Path(folder)
    return Store(folder, connect(folder))


def comparable_hash(fingerprint: Fingerprint) -> str:
    """SHA-256 over what two sessions must share to be compared: machine, settings that matter, our own
    source."""
    return _hash(json.dumps(comparable(fingerprint), sort_keys=True))


def comparable(fingerprint: Fingerprint) -> dict[str, Any]:
    """The part of a fingerprint that ``comparable_hash`` is taken over."""
    settings = {k: v for k, v in fingerprint.settings.items() if k not in FREE_SETTINGS}
    return to_json({"machine": fingerprint.machine, "settings": settings, "source": fingerprint.source})


def sane() -> sa.ColumnElement[bool]:
    """Of the sessions, those that began at a moment that is one."""
    return tables.sessions.c.started.between(0.0, LAST_MOMENT)


def tell_insane(connection: sa.Connection, bad: Bad) -> None:
    """Tell of the others: no list can place them."""
    s = tables.sessions.c
    for id_, started in connection.execute(sa.select(s.id, s.started).where(sa.not_(sane()))):
        bad(id_, f"it began {started:g} seconds after 1970, which is no date")


def _read(kind: type[Any], text: str, id: str) -> Any:
    """A record of the database, checked like one of a file: what an older version let in must not end a reader."""
    try:
        record = from_json(kind, json.loads(text))
        check_record(record, kind.__name__)
        if isinstance(record, Session) and record.id != id:
            raise SchemaError(f"its head is that of session {shown(record.id)}")
        return record
    except (ValueError, RecursionError) as error:
        raise StoreFault(
            f"session {shown(id)} cannot be read from the database: {str(error) or type(error).__name__}",
            f"`detente sessions remove {shlex.quote(id)}` removes it",
        ) from None


def _same(stored: str, session: Session) -> None:
    old = _read(Session, stored, session.id)
    if (old.started, old.fingerprint, old.planned) != (session.started, session.fingerprint, session.planned):
        raise StoreFault(
            f"another session with the id {session.id} is stored already",
            "it differs in its start, fingerprint or plan; change the id in the file's first line to keep both",
        )


def _count(connection: sa.Connection, session_id: str) -> int:
    number = sa.select(sa.func.count()).where(tables.processes.c.session_id == session_id)
    return connection.execute(number).scalar_one()


def _identities(connection: sa.Connection, session_id: str) -> set[tuple[str, str, int, float]]:
    bodies = sa.select(tables.processes.c.body).where(tables.processes.c.session_id == session_id)
    return {identity(_read(Process, text, session_id)) for text in connection.execute(bodies).scalars()}


def _insert(connection: sa.Connection, session_id: str, number: int, process: Process) -> None:
    evidence = process.evidence
    text = json.dumps(to_json(evidence.versions), sort_keys=True)
    hashed = _hash(text)
    if (
        connection.execute(sa.select(tables.versions.c.hash).where(tables.versions.c.hash == hashed)).scalar()
        is None
    ):
        connection.execute(sa.insert(tables.versions).values(hash=hashed, body=text))
    result = connection.execute(
        sa.insert(tables.processes).values(
            session_id=session_id,
            number=number,
            cell=process.cell.key,
            workload=process.cell.workload,
            label=process.cell.label,
            kind=process.kind,
            block=process.block,
            status=evidence.status,
            median_s=process_median(evidence.samples),
            versions=hashed,
            body=dumps(replace(process, evidence=replace(evidence, samples=()))),
        )
    )
    assert result.inserted_primary_key is not None
    row = result.inserted_primary_key[0]
    if evidence.samples:
        connection.execute(
            sa.insert(tables.samples),
            [{"process_id": row, "number": n, **to_json(s)} for n, s in enumerate(evidence.samples)],
        )


def _read_processes(connection: sa.Connection, session_id: str) -> Iterable[Process]:
    p, s = tables.processes.c, tables.samples.c
    by: dict[int, list[Sample]] = {}
    query = (
        sa.select(s.process_id, s.wall_ns, s.steps, s.cpu_ns, s.compile_events)
        .join(tables.processes, p.id == s.process_id)
        .where(p.session_id == session_id)
        .order_by(s.process_id, s.number)
    )
    for row, *values in connection.execute(query):
        by.setdefault(row, []).append(Sample(*values))
    bodies = sa.select(p.id, p.body).where(p.session_id == session_id).order_by(p.number)
    for row, body in connection.execute(bodies):
        process = _read(Process, body, session_id)
        evidence: Evidence = replace(process.evidence, samples=tuple(by.get(row, ())))
        yield replace(process, evidence=evidence)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
