"""The page for a terminal: one layout, in characters. Colour is added to it, never needed to read it."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from detente.report.numbers import NOTHING
from detente.report.page import (
    Chart,
    Command,
    Facts,
    Items,
    Page,
    Part,
    Section,
    Span,
    Statement,
    Style,
    Table,
    Words,
    plain_text,
    words,
)

Line = tuple[Span, ...]
_GAP = 2
_INDENT = 2
# CSI and OSC sequences, whole: without their first byte the rest would stand there as words.
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")
# A number stays with its per cent sign.
_BREAK = re.compile(r" (?!%)")
_BULLET: dict[str, str] = {"good": "✓ ", "bad": "✗ ", "warn": "! "}


@dataclass(frozen=True)
class Screen:
    """How wide the terminal is, and whether the sections behind the verdict are told too."""

    width: int = 100
    full: bool = False


def lay_out(page: Page, screen: Screen) -> list[Line]:
    """The page as lines of spans, none wider than the screen unless a single word is."""
    lines: list[Line] = [
        *_wrap(words(Span(page.kicker, "quiet")), screen.width),
        (),
        *_wrap(words(Span(page.title, "strong")), screen.width),
        (),
    ]
    for part in page.parts:
        lines.extend(_part(part, screen, 0))
    while lines and not lines[-1]:
        lines.pop()
    return lines


def to_plain(lines: Iterable[Line]) -> str:
    """The lines as text without any escape sequence."""
    return "".join(f"{''.join(s.text for s in line).rstrip()}\n" for line in lines)


def cells_wide(text: str) -> int:
    """Columns that a text takes in a terminal: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def clean(text: str) -> str:
    """Text without control characters: a reason that a framework wrote must not steer the reader's
    terminal."""
    return "".join(c if c.isprintable() else " " for c in _ESCAPE.sub("", text))


def capital(text: str) -> str:
    """As a sentence begins: the first letter alone is made large, so that names stay what they are."""
    return text[:1].upper() + text[1:]


def _part(part: Part, screen: Screen, depth: int) -> list[Line]:
    if isinstance(part, Statement):
        return [*_wrap(_toned(part), screen.width), ()]
    if isinstance(part, Section):
        if part.detail and not screen.full:
            return []
        lines: list[Line] = [words(Span(clean(part.title), "strong"))] if part.parts else []
        if depth == 0 and any(isinstance(p, Section) for p in part.parts):
            lines.append(words(Span("─" * min(screen.width, cells_wide(clean(part.title))), "quiet")))
        for child in part.parts:
            lines.extend(_part(child, screen, depth + 1))
        return lines
    if isinstance(part, Table):
        return _table(part, screen.width)
    if isinstance(part, Items):
        lines = []
        for item in part.items:
            mark = _BULLET.get(item.tone, "· ")
            lines.extend(_wrap(_toned(item), screen.width, _INDENT + 2, " " * _INDENT + mark))
        return [*lines, ()]
    if isinstance(part, Facts):
        return _facts(part, screen.width)
    if isinstance(part, Command):
        # Never wrapped: it is there to be copied.
        return [words(" " * _INDENT, Span(clean(part.text), "code")), ()]
    assert isinstance(part, Chart)
    return _bars(part, screen.width)


def _toned(statement: Statement) -> Words:
    # Good news needs no colour; what stands out is what should worry.
    tone: Style = "plain" if statement.tone == "good" else statement.tone
    return tuple(Span(s.text, tone if s.style == "plain" else s.style) for s in statement.words)


def _wrap(run: Words, width: int, indent: int = 0, first: str = "") -> list[Line]:
    """Break a run of words at spaces. ``first`` begins the first line, ``indent`` spaces the others."""
    pieces: list[Span] = []
    for s in run:
        for i, word in enumerate(_BREAK.split(clean(s.text))):
            if i:
                pieces.append(Span(" ", s.style))
            if word:
                pieces.append(Span(word, s.style))
    lines: list[Line] = []
    line: list[Span] = [Span(first)] if first else [Span(" " * indent)] if indent else []
    used = cells_wide(first) if first else indent
    start = used
    # A word may be made of several spans ("within" + ","): they are kept together.
    for word in _glued(pieces):
        long = sum(cells_wide(s.text) for s in word)
        space = word[0].text == " "
        if used + long > width and used > start:
            lines.append(tuple(line))
            line, used, start = ([Span(" " * indent)] if indent else []), indent, indent
        if space and used == start:
            continue
        line.extend(word)
        used += long
    if len(line) > (1 if start else 0):
        lines.append(tuple(line))
    return lines


def _glued(pieces: Sequence[Span]) -> list[list[Span]]:
    found: list[list[Span]] = []
    for s in pieces:
        if s.text == " " or not found or found[-1][0].text == " ":
            found.append([s])
        else:
            found[-1].append(s)
    return found


def _table(table: Table, width: int) -> list[Line]:
    """A table that is too wide is told in several, the first column repeated; no column is left out."""
    natural = [
        max(cells_wide(c.name), *(sum(cells_wide(clean(s.text)) for s in r.cells[i]) for r in table.rows), 0)
        for i, c in enumerate(table.columns)
    ]
    wanted = [min(n, 18) if c.wide else n for n, c in zip(natural, table.columns, strict=True)]
    groups: list[list[int]] = [[]]
    used = wanted[0] + _INDENT
    for i in range(1, len(table.columns)):
        if used + _GAP + wanted[i] > width and groups[-1]:
            groups.append([])
            used = wanted[0] + _INDENT
        groups[-1].append(i)
        used += _GAP + wanted[i]
    lines: list[Line] = []
    for group in groups:
        columns = [0, *group]
        widths = {i: wanted[i] for i in columns}
        # Room that is left goes to the columns that may wrap.
        for i in columns:
            if table.columns[i].wide:
                left = width - _INDENT - sum(widths.values()) - _GAP * (len(columns) - 1)
                widths[i] = min(natural[i], widths[i] + max(0, left))
        lines.append(_row(table, columns, widths, [words(Span(c.name, "quiet")) for c in table.columns])[0])
        # A column of remarks that stands alone is told only where there is a remark.
        sparse = len(group) == 1 and table.columns[group[0]].wide
        for row in table.rows:
            if sparse and plain_text(row.cells[group[0]]) in ("", NOTHING):
                continue
            style: Style = row.tone
            cells = [
                tuple(Span(s.text, style if s.style == "plain" else s.style) for s in c) for c in row.cells
            ]
            lines.extend(_row(table, columns, widths, cells))
        lines.append(())
    for note in table.notes:
        lines.extend([*_wrap(tuple(Span(s.text, "quiet") for s in note), width, _INDENT, " " * _INDENT), ()])
    return lines


def _row(table: Table, columns: list[int], widths: dict[int, int], cells: Sequence[Words]) -> list[Line]:
    wrapped = {i: _wrap(cells[i], widths[i]) or [()] for i in columns}
    lines: list[Line] = []
    for n in range(max(len(x) for x in wrapped.values())):
        line: list[Span] = [Span(" " * _INDENT)]
        for i in columns:
            part = wrapped[i][n] if n < len(wrapped[i]) else ()
            pad = " " * (widths[i] - sum(cells_wide(s.text) for s in part))
            right = table.columns[i].align == "right"
            line.extend([Span(pad), *part] if right else [*part, Span(pad)])
            line.append(Span(" " * _GAP))
        lines.append(tuple(line))
    return lines


def _facts(facts: Facts, width: int) -> list[Line]:
    if not facts.pairs:
        return []
    wide = min(max(cells_wide(clean(k)) for k, _ in facts.pairs), width // 3)
    lines: list[Line] = []
    for key, value in facts.pairs:
        name = clean(key)
        head = " " * _INDENT + name + " " * max(0, wide - cells_wide(name)) + " " * _GAP
        lines.extend(_wrap(words(value or "–"), width, _INDENT + wide + _GAP, head))
    return [*lines, ()]


# The largest ratio over the smallest, up to which a chart in characters has a straight axis.
_STRAIGHT = 5.0


def _bars(chart: Chart, width: int) -> list[Line]:
    """Only the ratios are drawn in characters: where each interval lies, against 1 and the margin."""
    if chart.kind != "ratios" or not chart.marks or chart.margin is None:
        return []
    margin = chart.margin
    name = max(cells_wide(m.row) for m in chart.marks)
    room = width - _INDENT - name - _GAP - 12
    if room < 24:
        return []
    ends = [x for m in chart.marks for x in (m.low or m.value, m.high or m.value, m.value)]
    low, high = min([*ends, 1 / (1 + margin)]), max([*ends, 1 + margin])
    # As far apart as that, a straight axis puts everything under 1 into one cell: twice as fast and twenty times.
    along: Callable[[float], float] = math.log if high > _STRAIGHT * low > 0 else float
    start, end = along(low), along(high)
    start, end = start - 0.05 * (end - start), end + 0.05 * (end - start)

    def place(x: float) -> int:
        return min(room - 1, max(0, round((along(x) - start) / (end - start) * (room - 1))))

    lines: list[Line] = []
    for m in chart.marks:
        cells = [" "] * room
        for i in range(place(1 / (1 + margin)), place(1 + margin) + 1):
            cells[i] = "░"
        cells[place(1.0)] = "│"
        for i in range(place(m.low or m.value), place(m.high or m.value) + 1):
            cells[i] = "━"
        cells[place(m.value)] = "●"
        head = " " * _INDENT + m.row + " " * (name - cells_wide(m.row) + _GAP)
        lines.append(words(head, Span("".join(cells), m.tone), Span(f"  {m.series}", m.tone)))
    below = [" "] * (room + 8)
    text = "same time"
    at = max(0, place(1.0) - len(text) // 2)
    below[at : at + len(text)] = text
    lines.append(words(Span(" " * (_INDENT + name + _GAP) + "".join(below).rstrip(), "quiet")))
    return [*lines, ()]
