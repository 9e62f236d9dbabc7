"""A step's profile, or several beside each other, as lines that people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from detente.programs.parts import Part
from detente.programs.scope import ROOT
from detente.programs.step_profile import DIRECTIONS, WORKS, StepProfile

_WORDS = {"remat": "recompute", "optimizer": "update"}
# Rows of parts that are listed; the rest is one row.
MOST = 20


def profile_lines(profiles: Mapping[str, StepProfile]) -> list[str]:
    """Tables by kind of work, by direction and by part, in milliseconds of a step; with two profiles also the first
    less the second, where a loss is positive, and parts in the order of it."""
    lines = [_head(label, one) for label, one in profiles.items()]
    sides = list(profiles.values())
    by_work = [one.by_work() for one in sides]
    works = [(w, [told[w] for told in by_work]) for w in WORKS if any(told[w] for told in by_work)]
    works += [
        ("dispatch", [one.dispatch for one in sides]),
        ("all", [max(one.watched_s, one.computed) for one in sides]),
    ]
    by_direction = [one.by_direction() for one in sides]
    directions = [
        (_WORDS.get(d, d), [told[d] for told in by_direction])
        for d in DIRECTIONS
        if any(told[d] for told in by_direction)
    ]
    by_part = [_by_part(one) for one in sides]
    parts = [
        (name, [told.get(name, 0.0) for told in by_part]) for name in sorted({n for t in by_part for n in t})
    ]
    parts.sort(key=lambda row: -_weight(row[1]))
    if len(parts) > MOST + 1:
        rest = parts[MOST:]
        summed = [sum(column) for column in zip(*(values for _, values in rest), strict=True)]
        parts = [*parts[:MOST], (f"{len(rest)} more", summed)]
    for title, rows in (("by kind of work", works), ("by direction", directions), ("by part", parts)):
        lines += ["", *_table(title, list(profiles), rows)]
    return lines


def _head(label: str, one: StepProfile) -> str:
    said = [f"{label}: {_ms(one.step_s)} ms a step on {one.threads} thread{'s' if one.threads != 1 else ''}"]
    if one.idle is not None and one.step_s:
        share = one.idle / (one.threads * one.step_s)
        said.append(f"{100 * share:.0f} % of their time idle")
    if one.watched_s and one.step_s and one.watched_s != one.step_s:
        said.append(f"{100 * (one.watched_s / one.step_s - 1):+.1f} % while it was watched")
    said.append(f"of {100 * one.covered:.0f} % of the kernels' time the part is known")
    return "; ".join(said)


def _by_part(one: StepProfile) -> dict[str, float]:
    found: dict[str, float] = {}
    for part, seconds in one.by_part().items():
        found[_name(part)] = found.get(_name(part), 0.0) + seconds
    return found


def _name(part: Part) -> str:
    """An optimizer updates all parameters alike: whose they are says nothing of it."""
    if part.direction == "optimizer":
        return "update"
    path = part.path if part.path not in ("", ROOT) else "(model and loss)"
    return f"{path} {_WORDS.get(part.direction, part.direction)}"


def _weight(seconds: Sequence[float]) -> float:
    return abs(seconds[0] - seconds[1]) if len(seconds) == 2 else max(seconds)


def _table(title: str, labels: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> list[str]:
    cells = [(title, *(f"{label}, ms" for label in labels), *(["difference"] if len(labels) == 2 else []))]
    for name, values in rows:
        both = [f"{1e3 * (values[0] - values[1]):+.4g}"] if len(values) == 2 else []
        cells.append((name, *(_ms(value) for value in values), *both))
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    return [
        "  ".join(
            c.rjust(w) if k else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"
