"""The page: a tree of parts that says what is told, and nothing of how it looks. Every renderer walks the
same tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from detente.report.numbers import NOTHING

Tone = Literal["plain", "good", "warn", "bad", "quiet"]
Style = Literal["plain", "strong", "code", "quiet", "good", "warn", "bad"]


@dataclass(frozen=True)
class Span:
    """A run of words in one style. Renderers escape the text; it is never markup, but for one thing: what
    stands between two backticks is something to type."""

    text: str
    style: Style = "plain"


Words = tuple[Span, ...]


def words(*parts: str | Span | Iterable[Span]) -> Words:
    """Strings and spans, joined into one run of words."""
    found: list[Span] = []
    for part in parts:
        if isinstance(part, str):
            found.append(Span(part))
        elif isinstance(part, Span):
            found.append(part)
        else:
            found.extend(part)
    return tuple(s for s in found if s.text)


def strong(text: str) -> Span:
    """Words that a reader in a hurry must see."""
    return Span(text, "strong")


def plain_text(run: Words) -> str:
    """The words without their styles."""
    return "".join(s.text for s in run)


@dataclass(frozen=True)
class Statement:
    """A sentence that stands on its own: a verdict, or what it rests on. ``leads`` sentences are set
    large."""

    words: Words
    tone: Tone = "plain"
    leads: bool = False


@dataclass(frozen=True)
class Column:
    """A column of a table. ``wide`` columns may wrap in the terminal; the others never do."""

    name: str
    align: Literal["left", "right"] = "left"
    wide: bool = False


@dataclass(frozen=True)
class TableRow:
    """A row; ``tone`` colours it as a whole."""

    cells: tuple[Words, ...]
    tone: Tone = "plain"


@dataclass(frozen=True)
class Table:
    """A table and, below it, what its words mean."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[Words, ...] = ()


def table_of(columns: tuple[Column, ...], rows: tuple[TableRow, ...], *notes: Words) -> Table:
    """A table without the columns in which no row has anything to say (the first column always stays)."""
    said = [
        i
        for i in range(len(columns))
        if i == 0 or any(plain_text(r.cells[i]) not in ("", NOTHING) for r in rows)
    ]
    kept = tuple(TableRow(tuple(r.cells[i] for i in said), r.tone) for r in rows)
    return Table(tuple(columns[i] for i in said), kept, notes)


@dataclass(frozen=True)
class Mark:
    """One thing that a chart draws: a point with an interval, or the end of a bar."""

    row: str
    value: float
    low: float | None = None
    high: float | None = None
    series: str = ""
    tone: Tone = "plain"
    label: str = ""


@dataclass(frozen=True)
class Chart:
    """Data of a picture. ``kind``: ``ratios`` (against 1, with the margin as a band), ``intervals``
    (seconds), ``runs`` (first, second, steady on a logarithmic axis), ``bars`` (bytes by label), ``shares``
    (0 to 1). Everything in it stands in a table too, so a renderer without pictures may leave it out."""

    kind: Literal["ratios", "intervals", "runs", "bars", "shares"]
    title: str
    marks: tuple[Mark, ...]
    margin: float | None = None


@dataclass(frozen=True)
class Items:
    """A list of findings or remarks."""

    items: tuple[Statement, ...]


@dataclass(frozen=True)
class Facts:
    """Names and values: the machine, the versions."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Command:
    """A command to type, word for word."""

    text: str


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it. ``detail`` sections are folded in HTML and left out of a short
    text."""

    title: str
    parts: tuple[Part, ...]
    detail: bool = False


Part = Statement | Table | Chart | Items | Facts | Command | Section


@dataclass(frozen=True)
class Page:
    """A whole page. ``kicker`` is the quiet line above everything: what, when, where."""

    title: str
    kicker: str
    parts: tuple[Part, ...] = field(default=())
