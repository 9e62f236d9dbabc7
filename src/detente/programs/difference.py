"""Two programs' Counts, told apart. Counting is where an explanation starts, never where it ends: a difference is a
hypothesis until a run that changes only this shows that it costs time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from detente.records.counts import Counts

# What says which program it is rather than what is in it.
_IDENTITY = frozenset({"form", "name", "hash"})

# (row, what a reader sees first) in the order of the side-by-side table; the censuses follow.
SUMMARY: tuple[tuple[str, str], ...] = (
    ("operations", "operations"),
    ("instructions", "instructions as written"),
    ("dead", "of them read by nobody"),
    ("lines", "lines"),
    ("products", "products"),
    ("flops", "FLOPs of products"),
    ("rng_ops", "random operations"),
    ("loops", "loops x trips"),
    ("constants_bytes", "constants, bytes"),
    ("argument_bytes", "arguments, bytes"),
    ("output_bytes", "results, bytes"),
    ("alias_bytes", "donated, bytes"),
)
CENSUSES: tuple[tuple[str, str], ...] = (
    ("norms", "LayerNorm and its kin"),
    ("product_dtypes", "products by dtype"),
    ("narrow_sums", "terms of the longest narrow sum"),
    ("dtypes", "operations by dtype"),
    ("opcodes", "operations by opcode"),
    ("custom_calls", "custom calls"),
)


@dataclass(frozen=True)
class Difference:
    """``what`` is a field of Counts, with ``.KEY`` behind it for one entry of a census."""

    what: str
    a: Any
    b: Any


def difference(a: Counts, b: Counts) -> tuple[Difference, ...]:
    """Everything in which two counts differ, in the order of Counts' fields; empty for a program and itself."""
    found: list[Difference] = []
    for field in dataclasses.fields(Counts):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name in _IDENTITY or left == right:
            continue
        if field.name == "loops":
            left, right = trips(a), trips(b)  # a body's name is not a difference
            if left != right:
                found.append(Difference("loops", left, right))
        elif isinstance(left, dict):
            keys = [*left, *(k for k in right if k not in left)]
            found += [
                Difference(f"{field.name}.{k}", left.get(k, 0), right.get(k, 0))
                for k in keys
                if left.get(k, 0) != right.get(k, 0)
            ]
        else:
            found.append(Difference(field.name, left, right))
    return tuple(found)


def trips(counts: Counts) -> str:
    """``2 x 12, 1 x ?``; ``none`` without loops."""
    seen: dict[int | None, int] = {}
    for loop in counts.loops:
        seen[loop.trips] = seen.get(loop.trips, 0) + 1
    return ", ".join(f"{n} x {'?' if t is None else t}" for t, n in seen.items()) or "none"


@dataclass(frozen=True)
class Section:
    """A part of the table: ``rows`` are (label, one value per program)."""

    title: str
    rows: tuple[tuple[str, tuple[Any, ...]], ...]


def side_by_side(counts: Sequence[Counts]) -> tuple[Section, ...]:
    """Several programs in columns: the summary, then each census that any of them has, widest difference first."""
    summary = tuple(
        (label, tuple(trips(c) if name == "loops" else getattr(c, name) for c in counts))
        for name, label in SUMMARY
    )
    sections = [Section("", summary)]
    for name, title in CENSUSES:
        tables = [getattr(c, name) for c in counts]
        keys = list(dict.fromkeys(k for table in tables for k in table))
        rows = [(k, tuple(table.get(k, 0) for table in tables)) for k in keys]
        rows.sort(key=lambda row: (min(row[1]) - max(row[1]), -max(row[1]), row[0]))
        if rows:
            sections.append(Section(title, tuple(rows)))
    return tuple(sections)
