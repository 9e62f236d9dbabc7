"""History as a page: each cell with its sessions, the newest last, and what changed in one sentence."""

from __future__ import annotations

import datetime

from detente.report.numbers import NOTHING, count, plain_span, seconds, significant
from detente.report.page import (
    Column,
    Page,
    Part,
    Section,
    Span,
    Statement,
    Style,
    TableRow,
    Tone,
    Words,
    strong,
    table_of,
    words,
)
from detente.report.terminal import render_page
from detente.store.history import Point, Series
from detente.store.unpaired import Change


def render_history(series: tuple[Series, ...], *, width: int = 100, colour: bool = False) -> str:
    """History as text; see ``compose_history``."""
    return render_page(compose_history(series), width=width, colour=colour)


def compose_history(series: tuple[Series, ...]) -> Page:
    """The page of some cells' histories. What changed last is said first."""
    if not series:
        nothing = "Nothing is stored that this asks for. `detente history --sessions` lists what is there."
        return Page("history", "détente", (Statement(words(nothing), "warn", leads=True),))
    parts: list[Part] = [*_lost(series), _headline(series)]
    parts.extend(Section(s.cell, _series_parts(s)) for s in series)
    note = "ratio: time now over time then, unpaired. A verdict between stacks needs one session with both in it."
    parts.append(Statement(words(note), "quiet"))
    points = sum(len(s.points) for s in series)
    kicker = f"détente · {count(len(series), 'row')}, {count(points, 'point')}"
    return Page("history", kicker, tuple(parts))


def _lost(series: tuple[Series, ...]) -> list[Part]:
    """Rows whose last point is not of the newest session that ran them: what is said of it is of an older one."""
    return [
        Statement(
            words(
                strong(s.cell.rsplit("/", 1)[1]), f" is {s.lost.status} in {s.lost.session}: {s.lost.reason}"
            ),
            "warn",
            leads=True,
        )
        for s in series
        if s.lost is not None
    ]


def _headline(series: tuple[Series, ...]) -> Statement:
    series = tuple(s for s in series if s.lost is None)
    if not series:
        return Statement(words("No row has a time in the newest session that ran it."), leads=True)
    changed = [s for s in series if (c := s.points[-1].change) is not None and c.word == "CHANGED"]
    compared = [s for s in series if (c := s.points[-1].change) is not None and c.word != "NOT COMPARABLE"]
    if changed:
        said: list[str | Span] = []
        for s in changed[:4]:
            said.extend(
                [", " if said else "", strong(s.cell.rsplit("/", 1)[1]), f" {_times(s.points[-1].change)}"]
            )
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        return Statement(words("Changed in the newest session: ", *said, f"{more}."), "warn", leads=True)
    if compared:
        return Statement(
            words(f"No change seen in {count(len(compared), 'row')} of the newest session."),
            "good",
            leads=True,
        )
    return Statement(
        words("Nothing to compare with: no earlier session has this machine and these settings."), leads=True
    )


def _times(change: Change | None) -> str:
    if change is None or change.ratio is None:
        return ""
    slower = change.ratio > 1
    return f"{significant(change.ratio if slower else 1 / change.ratio)}x {'slower' if slower else 'faster'}"


def _series_parts(series: Series) -> tuple[Part, ...]:
    columns = (
        Column("session"),
        Column("when"),
        Column("steady", "right"),
        Column("n", "right"),
        Column("against"),
        Column("change"),
        Column("ratio"),
        Column("95 % interval"),
        Column("remarks", wide=True),
    )
    return (table_of(columns, tuple(_row(p) for p in series.points)),)


_TONES: dict[str, Style] = {"CHANGED": "warn", "NOT COMPARABLE": "quiet", "NO CHANGE SEEN": "plain"}


def _row(point: Point) -> TableRow:
    when = datetime.datetime.fromtimestamp(point.started, datetime.UTC)
    c = point.change
    remarks = [
        *(["imported, not measured here"] if point.imported is not None else []),
        *point.changed_versions,
    ]
    if c is not None and (c.word != "CHANGED" or point.load):
        remarks.append(c.reason)
    change: Words = words(NOTHING) if c is None else words(Span(c.word, _TONES[c.word]))
    ends = NOTHING if c is None or c.low is None or c.high is None else plain_span(c.low, c.high)
    cells = (
        words(point.session),
        words(f"{when:%Y-%m-%d %H:%M}"),
        words(seconds(point.median)),
        words(str(len(point.medians))),
        words(point.against or NOTHING),
        change,
        words(NOTHING if c is None else significant(c.ratio)),
        words(ends),
        words("; ".join(remarks) or NOTHING),
    )
    tone: Tone = "quiet" if c is not None and c.word == "NOT COMPARABLE" else "plain"
    return TableRow(cells, tone)
