"""A step's profile, or several beside each other, as lines that people read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from detente.programs.parts import Part
from detente.programs.scope import ROOT
from detente.programs.step_profile import DIRECTIONS, WORKS, StepProfile, Work

_WORDS = {"remat": "recompute", "optimizer": "update"}
# Rows of parts that are listed; the rest is one row.
MOST = 20


def profile_lines(profiles: Mapping[str, StepProfile]) -> list[str]:
    """Tables by kind of work, by direction and by part, in milliseconds of a step; with two profiles also the first
    less the second, where a loss is positive, and parts in the order of it."""
    lines = [_head(label, one) for label, one in profiles.items()]
    sides = list(profiles.values())
    works: list[Work] = [w for w in WORKS if any(one.by_work()[w] for one in sides)]
    lines += [
        "",
        *_table("by kind of work", profiles, [(w, lambda p, w=w: p.by_work()[w]) for w in works], rest=True),
    ]
    directions = [d for d in DIRECTIONS if any(one.by_direction()[d] for one in sides)]
    rows = [(_WORDS.get(d, d), lambda p, d=d: p.by_direction()[d]) for d in directions]
    lines += ["", *_table("by direction", profiles, rows)]
    held = [_by_part(one) for one in sides]
    names = sorted(
        {name for one in held for name in one}, key=lambda name: -_weight([h.get(name, 0.0) for h in held])
    )
    shown, left = (names, []) if len(names) <= MOST + 1 else (names[:MOST], names[MOST:])
    of = {id(one): parts for one, parts in zip(sides, held, strict=True)}

    def row(*names: str) -> Callable[[StepProfile], float]:
        return lambda one: sum(of[id(one)].get(name, 0.0) for name in names)

    parts = [(name, row(name)) for name in shown]
    if left:
        parts.append((f"{len(left)} more", row(*left)))
    return [*lines, "", *_table("by part", profiles, parts)]


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


def _weight(seconds: list[float]) -> float:
    return abs(seconds[0] - seconds[1]) if len(seconds) == 2 else max(seconds)


def _table(
    title: str,
    profiles: Mapping[str, StepProfile],
    rows: list[tuple[str, Callable[[StepProfile], float]]],
    rest: bool = False,
) -> list[str]:
    sides = list(profiles.values())
    cells = [(title, *(f"{label}, ms" for label in profiles), *(["difference"] if len(sides) == 2 else []))]
    figures = [(name, [figure(one) for one in sides]) for name, figure in rows]
    if rest:
        figures.append(("dispatch", [one.dispatch for one in sides]))
        figures.append(("all", [max(one.watched_s, one.computed) for one in sides]))
    for name, values in figures:
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
