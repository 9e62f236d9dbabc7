"""How a row's time went over the stored sessions: one query over an index, then unpaired comparisons."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from detente.judge.headline import LEAST_RATIO
from detente.records.codec import from_json, shown
from detente.records.limits import LAST_MOMENT
from detente.records.session import Fingerprint
from detente.store import tables
from detente.store.database import reading
from detente.store.sessions import Bad, Store, comparable, ignore, sane, tell_insane
from detente.store.unpaired import MARGIN, Change, compare_unpaired


@dataclass(frozen=True)
class Point:
    """One row in one session. ``medians`` are the process medians in seconds per step; ``change`` compares
    them with the newest earlier session of the same fingerprint, None for the first. ``versions`` names
    what the stack's versions were, ``changed_versions`` what is new in them since that session.
    ``imported``: when the session was taken from a file; None where it was measured here. ``load``: what others did to
    the machine meanwhile, in words; empty where it was quiet, or nobody judged the session."""

    session: str
    started: float
    medians: tuple[float, ...]
    versions: dict[str, str]
    change: Change | None = None
    against: str | None = None
    changed_versions: tuple[str, ...] = ()
    imported: float | None = None
    load: str = ""

    @property
    def median(self) -> float:
        """Median of the process medians, in seconds per step."""
        return statistics.median(self.medians)


@dataclass(frozen=True)
class Lost:
    """Why a row has no point in the newest session that ran it: it was judged ``void``, ``failed`` or ``oom`` there."""

    session: str
    status: str
    reason: str


@dataclass(frozen=True)
class Series:
    """The points of one cell, the oldest first. ``lost``: where the newest session that ran it is not the last of them,
    so that what changed last is nothing that anybody should take for today's."""

    cell: str
    points: tuple[Point, ...]
    lost: Lost | None = None


def history(
    store: Store,
    *,
    workload: str | None = None,
    stack: str | None = None,
    cell: str | None = None,
    sessions: int = 30,
    bad: Bad = ignore,
    without: Collection[str] = (),
) -> tuple[Series, ...]:
    """The series of every cell that matches, over the newest ``sessions`` sessions that have one.

    ``stack`` is the row's name (``jax``); the second rows of A/A pairs (``jax#aa``) come only when asked
    for by name, and so do rows under an arm (``jax[donation=off]``). ``cell`` matches the beginning of a
    cell's key (``gpt2/paper/train-step/fp32``). Only processes that ended well count, and no row that was
    judged void. Answers from the index alone: a million samples take less than 100 ms
    (benchmarks/history.py). A session that cannot be read is told to ``bad`` and left out; so are those
    ``without``.
    """
    with reading(store.engine) as connection:
        tell_insane(connection, bad)
        found_heads = _heads(connection, workload, stack, sessions, bad)
        heads = {id_: head for id_, head in found_heads.items() if id_ not in without}
        if not heads:
            return ()
        loads = _loads(connection, heads)
        found = _medians(connection, list(heads), workload, stack, cell)
        hashes = {v for points in found.values() for _, v in points.values()}
        versions = _versions(connection, hashes)
        lost = _lost(connection, found, heads)
    return tuple(
        replace(_series(key, points, heads, versions, loads), lost=lost.get(key))
        for key, points in sorted(found.items())
    )


def _lost(
    connection: sa.Connection, found: Mapping[str, _Medians], heads: Mapping[str, _Head]
) -> dict[str, Lost]:
    """Of each cell the newest session behind its last point in which it was judged to have no time. A stranger's
    session takes nothing from what was measured here."""
    j = tables.judgements.c
    query = sa.select(j.cell, j.session_id, j.status, j.reason).where(
        j.session_id.in_(list(heads)), j.cell.in_(list(found)), j.status.in_(("void", "failed", "oom"))
    )
    place = {id_: n for n, id_ in enumerate(heads)}
    lost: dict[str, Lost] = {}
    for cell, id_, status, reason in sorted(connection.execute(query), key=lambda row: place[row[1]]):
        last = max(found[cell], key=place.__getitem__)
        own = heads[id_].imported is None or heads[last].imported is not None
        if own and place[id_] > place[last]:
            lost[cell] = Lost(id_, status, reason)
    return lost


def unjudged(
    store: Store, *, workload: str | None = None, stack: str | None = None, sessions: int = 30
) -> tuple[str, ...]:
    """Of the sessions that ``history`` would tell of, those that nobody judged: imported, measured where no judge is
    installed, by a parent that was killed, or judged before the load of the machine was kept."""
    with reading(store.engine) as connection:
        heads = _heads(connection, workload, stack, sessions, ignore)
        judged = _loads(connection, heads)
    return tuple(id_ for id_ in heads if id_ not in judged)


def _loads(connection: sa.Connection, heads: Mapping[str, _Head]) -> dict[str, str]:
    j = tables.judgements.c
    query = sa.select(j.session_id, j.load).where(j.session_id.in_(list(heads)), j.load.is_not(None))
    return {id_: load for id_, load in connection.execute(query)}


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
            stacks = {str(c["label"]): str(c["stack"]) for c in head["planned"]}
            own = dict(head["fingerprint"]["settings"].get("own_files") or {})
            sound = imported is None or (type(imported) in (int, float) and 0 <= imported <= LAST_MOMENT)
        except (ValueError, RecursionError, AttributeError, LookupError, TypeError) as error:
            bad(id_, f"its head is damaged: {error}")
            continue
        if not sound:
            bad(id_, f"`imported` is {shown(imported)}, which is no date")
            continue
        found[id_] = _Head(id_, started, fingerprint, text, imported, stacks, own)
    return found


@dataclass(frozen=True)
class _Head:
    id: str
    started: float
    fingerprint: str
    text: str
    imported: float | None
    stacks: dict[str, str]  # of each row
    own: dict[str, Any]  # digests of the user's own files


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
    cell: str,
    found: _Medians,
    heads: Mapping[str, _Head],
    versions: dict[str, dict[str, str]],
    loads: Mapping[str, str],
) -> Series:
    points: list[Point] = []
    # The sessions are in order of time; each is compared once, so the intervals are corrected for that many.
    comparisons = max(1, len(found) - 1)
    for id_, head in heads.items():
        if id_ not in found:
            continue
        medians, hashed = found[id_]
        known = versions.get(hashed, {})
        load = loads.get(id_, "")
        point = Point(id_, head.started, tuple(medians), known, imported=head.imported, load=load)
        points.append(_compared(cell, point, points, heads, comparisons))
    return Series(cell, tuple(points))


def _compared(
    cell: str, point: Point, earlier: list[Point], heads: Mapping[str, _Head], comparisons: int
) -> Point:
    if not earlier:
        return point
    mine, label = heads[point.session], cell.rsplit("/", 1)[1]
    # A file may claim to come from this machine. It is compared with other files of that machine, never with what was
    # measured here: an imported session must neither pass a gate nor fail one. And a row is called after its class: of
    # two files that have one, neither is the other's past.
    alike = [
        p
        for p in earlier
        if heads[p.session].fingerprint == mine.fingerprint
        and (p.imported is None) == (point.imported is None)
        and heads[p.session].stacks.get(label) == mine.stacks.get(label)
    ]
    if not alike:
        last = heads[earlier[-1].session]
        change = Change("NOT COMPARABLE", f"{_apart(last, mine, label)}: a trend, not a verdict")
        return replace(point, change=change, against=last.id)
    old = alike[-1]
    moved = _moved(old, point, heads)
    # Sessions of what did not change differ, too: how far, the earlier ones say.
    same = [p.medians for p in alike if not p.load and not _moved(p, old, heads)]
    load = point.load or old.load
    change = compare_unpaired(
        old.medians,
        point.medians,
        comparisons=comparisons,
        margin=LEAST_RATIO - 1 if load else MARGIN,
        sessions=same,
    )
    if load:
        change = replace(change, reason=f"{change.reason}; {load}")
    return replace(point, change=change, against=old.session, changed_versions=moved)


def _moved(old: Point, new: Point, heads: Mapping[str, _Head]) -> tuple[str, ...]:
    """What a row's versions were and are; and the user's own files of these sessions that were edited."""
    names = sorted({*old.versions, *new.versions})
    moved = [
        f"{n} {old.versions.get(n, 'absent')} to {new.versions.get(n, 'absent')}"
        for n in names
        if old.versions.get(n) != new.versions.get(n)
    ]
    before, now = heads[old.session].own, heads[new.session].own
    moved += [f"{n} was edited" for n in sorted(before.keys() & now.keys()) if before[n] != now[n]]
    return tuple(moved)


def _apart(last: _Head, mine: _Head, label: str) -> str:
    """Why two sessions of one cell are not compared."""
    if last.fingerprint != mine.fingerprint:
        return _difference(last, mine)
    if (last.imported is None) != (mine.imported is None):
        return "one was imported and the other measured here"
    return f"{label} was {last.stacks.get(label)} and is {mine.stacks.get(label)}"


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
