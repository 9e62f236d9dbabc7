"""A program's parts as nested boxes, root on top: width is time, where it was profiled, else operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from detente.programs.part_table import PartRow, PartTable
from detente.programs.parts import Part

# Narrower boxes are left out; what is in them is in the table.
_THIN = 1.5


@dataclass(frozen=True)
class Box:
    """A box at ``x`` of ``width`` in a ``row``. ``part``: the number of the part that a click opens, None where the box
    only holds others."""

    x: float
    width: float
    row: int
    label: str
    title: str
    direction: str
    part: int | None


@dataclass
class _Node:
    size: float = 0.0
    inside: dict[str, _Node] = field(default_factory=dict)
    row: PartRow | None = None


def weight(row: PartRow, timed: bool) -> float:
    """What a part's width stands for: seconds, or operations."""
    return (row.seconds or 0.0) if timed else float(row.operations)


def icicle(
    table: PartTable, numbers: Mapping[Part, int], whole: float, width: float, timed: bool
) -> tuple[Box, ...]:
    """The boxes of a table; ``whole`` is what the full ``width`` stands for, so that two programs are drawn to one
    scale. ``numbers``: part -> the number that a click opens."""
    root = _Node()
    for row in table.rows:
        at = root
        size = weight(row, timed)
        for name in (row.direction, *filter(None, row.path.split("."))):
            at = at.inside.setdefault(name, _Node())
            at.size += size
        at.row = row
    unit = width / whole if whole else 0.0
    found: list[Box] = []
    x = 0.0
    for direction, node in root.inside.items():
        _place(node, direction, direction, direction, x, 0, unit, timed, numbers, found)
        x += node.size * unit
    return tuple(found)


def _place(
    node: _Node,
    label: str,
    path: str,
    direction: str,
    x: float,
    row: int,
    unit: float,
    timed: bool,
    numbers: Mapping[Part, int],
    found: list[Box],
) -> None:
    wide = node.size * unit
    if wide < _THIN:
        return
    mine = node.row
    part = next((numbers[m] for m in mine.members if m in numbers), None) if mine is not None else None
    amount = f"{1e6 * node.size:,.0f} us" if timed else f"{node.size:,.0f} operations"
    times = f", x{mine.times}" if mine is not None and mine.times > 1 else ""
    where = f"{path} {direction}" if row else direction
    found.append(Box(round(x, 2), round(wide, 2), row, label, f"{where}: {amount}{times}", direction, part))
    for name, inner in node.inside.items():
        below = f"{path}.{name}" if row else name
        _place(inner, name, below, direction, x, row + 1, unit, timed, numbers, found)
        x += inner.size * unit


def deepest(boxes: tuple[Box, ...]) -> int:
    """How many rows the boxes take."""
    return 1 + max((b.row for b in boxes), default=-1)
