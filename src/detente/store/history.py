"""How a row's time went over the stored sessions: one query over an index, then unpaired comparisons."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from detente.records.codec import from_json, shown
from detente.records.limits import LAST_MOMENT
from detente.records.session import Fingerprint
from detente.store import tables
from detente.store.database import reading
from detente.store.sessions import Bad, Store, comparable, ignore, sane, tell_insane
from detente.store.unpaired import Change, compare_unpaired


@dataclass(frozen=True)
class Point:
    """One row in one session. ``medians`` are the process medians in seconds per step; ``change`` compares
    them with the newest earlier session of the same fingerprint, None for the first. ``versions`` names
    what the stack's versions were, ``changed_versions`` what is new in them since that session.
    ``imported``: when the session was taken from a file; None where it was measured here."""

    session: str
    started: float
    medians: tuple[float, ...]
    versions: dict[str, str]
    change: Change | None = None
    against: str | None = None
    changed_versions: tuple[str, ...] = ()
    imported: float | None = None

    @property
    def median(self) -> float:
        """Median of the process medians, in seconds per step."""
        return statistics.median(self.medians)


@dataclass(frozen=True)
class Series:
    """The points of one cell, the oldest first."""

    cell: str
    points: tuple[Point, ...]


def history(
    store: Store,
    *,
    workload: str | None = None,
    stack: str | None = None,
    cell: str | None = None,
    sessions: int = 30,
    bad: Bad = ignore,
) -> tuple[Series, ...]:
    """The series of every cell that matches, over the newest ``sessions`` sessions that have one.

    ``stack`` is the row's name (``jax``); the second rows of A/A pairs (``jax#aa``) come only when asked
    for by name, and so do rows under an arm (``jax[donation=off]``). ``cell`` matches the beginning of a
    cell's key (``gpt2/paper/train-step/fp32``). Only processes that ended well count, and no row that was
    judged void. Answers from the index alone: a million samples take less than 100 ms
    (benchmarks/history.py). A session that cannot be read is told to ``bad`` and left out.
    """
    with reading(store.engine) as connection:
        tell_insane(connection, bad)
        heads = _heads(connection, workload, stack, sessions, bad)
        if not heads:
            return ()
        found = _medians(connection, list(heads), workload, stack, cell)
        hashes = {v for points in found.values() for _, v in points.values()}
        versions = _versions(connection, hashes)
    return tuple(_series(key, points, heads, versions) for key, points in sorted(found.items()))


def _heads(
    connection: sa.Connection, workload: str | None, stack: str | None, limit: int, bad: Bad
) -> dict[str, _Head]:
    p, s = tables.processes.c, tables.sessions.c
    wanted = [p.session_id == s.id]
    if workload is not None:
        wanted.append(p.workload == workload)
    if stack is not None:
        wanted.append(p.label == stack)
    query = (
        sa.select(s.id, s.started, s.fingerprint, s.head)
        .where(sa.exists().where(*wanted), sane())
        .order_by(s.started.desc(), s.id.desc())
        .limit(limit)
    )
    rows = connection.execute(query).all()
    found = {}
    for id_, started, fingerprint, text in reversed(rows):
        try:
            head = json.loads(text)
            imported = head.get("imported")
            sound = imported is None or (type(imported) in (int, float) and 0 <= imported <= LAST_MOMENT)
        except (ValueError, RecursionError, AttributeError) as error:
            bad(id_, f"its head is damaged: {error}")
            continue
        if not sound:
            bad(id_, f"`imported` is {shown(imported)}, which is no date")
            continue
        found[id_] = _Head(id_, started, fingerprint, text, imported)
    return found


@dataclass(frozen=True)
class _Head:
    id: str
    started: float
    fingerprint: str
    text: str
    imported: float | None


_Medians = dict[str, tuple[list[float], str]]


def _medians(
    connection: sa.Connection, ids: list[str], workload: str | None, stack: str | None, cell: str | None
) -> dict[str, _Medians]:
    """cell -> session -> (process medians, hash of the versions of its newest process)."""
    p, j = tables.processes.c, tables.judgements.c
    judged = sa.select(j.session_id, j.cell).where(j.status == "void", j.session_id.in_(ids))
    void = {tuple(row) for row in connection.execute(judged)}
    query = sa.select(p.cell, p.session_id, p.median_s, p.versions).where(
        p.session_id.in_(ids), p.kind == "time", p.status == "ok", p.block >= 0, p.median_s.is_not(None)
    )
    if workload is not None:
        query = query.where(p.workload == workload)
    if stack is not None:
        query = query.where(p.label == stack)
    elif cell is None:
        query = query.where(p.label.not_like("%#aa"), p.label.not_like("%[%=%]%"))
    if cell is not None:
        query = query.where(p.cell.startswith(cell, autoescape=True))
    found: dict[str, _Medians] = {}
    for key, id_, median, hashed in connection.execute(query):
        if (id_, key) not in void and median > 0 and math.isfinite(median):
            found.setdefault(key, {}).setdefault(id_, ([], hashed))[0].append(median)
    return found


def _versions(connection: sa.Connection, hashes: Iterable[str]) -> dict[str, dict[str, str]]:
    v = tables.versions.c
    rows = connection.execute(sa.select(v.hash, v.body).where(v.hash.in_(sorted(hashes))))
    return {hashed: json.loads(body) for hashed, body in rows}


def _series(
    cell: str, found: _Medians, heads: Mapping[str, _Head], versions: dict[str, dict[str, str]]
) -> Series:
    points: list[Point] = []
    # The sessions are in order of time; each is compared once, so the intervals are corrected for that many.
    comparisons = max(1, len(found) - 1)
    for id_, head in heads.items():
        if id_ not in found:
            continue
        medians, hashed = found[id_]
        known = versions.get(hashed, {})
        point = Point(id_, head.started, tuple(medians), known, imported=head.imported)
        points.append(_compared(point, points, heads, comparisons))
    return Series(cell, tuple(points))


def _compared(point: Point, earlier: list[Point], heads: Mapping[str, _Head], comparisons: int) -> Point:
    if not earlier:
        return point
    mine = heads[point.session]
    # A file may claim to come from this machine. It is compared with other files of that machine, never with what was
    # measured here: an imported session must neither pass a gate nor fail one.
    alike = (
        p
        for p in reversed(earlier)
        if heads[p.session].fingerprint == mine.fingerprint
        and (p.imported is None) == (point.imported is None)
    )
    old = next(alike, None)
    if old is None:
        last = earlier[-1]
        why = (
            "one was imported and the other measured here"
            if heads[last.session].fingerprint == mine.fingerprint
            else _difference(heads[last.session], mine)
        )
        change = Change("NOT COMPARABLE", f"{why}: a trend, not a verdict")
        return replace(point, change=change, against=last.session)
    change = compare_unpaired(old.medians, point.medians, comparisons=comparisons)
    names = sorted({*old.versions, *point.versions})
    moved = tuple(
        f"{n} {old.versions.get(n, 'absent')} to {point.versions.get(n, 'absent')}"
        for n in names
        if old.versions.get(n) != point.versions.get(n)
    )
    return replace(point, change=change, against=old.session, changed_versions=moved)


def _difference(a: _Head, b: _Head) -> str:
    """What differs between two fingerprints, by name: the first three."""
    try:
        before, after = (
            _leaves(comparable(from_json(Fingerprint, json.loads(h.text)["fingerprint"]))) for h in (a, b)
        )
    except (ValueError, RecursionError, LookupError, TypeError):
        return "the fingerprint of one cannot be read"
    keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
    said = [
        "détente's own source" if k == "source" else f"{k} ({before.get(k)} to {after.get(k)})"
        for k in keys[:3]
    ]
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"{', '.join(said) or 'the fingerprint'}{more} changed"


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for name, inner in value.items():
            found.update(_leaves(inner, f"{path}.{name}" if path else name))
        return found
    return {path: value}
