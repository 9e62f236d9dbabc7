"""Which causes are tested in the time that there is: those that promise most for what they cost. The rest is listed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from detente.explain.causes import Cause, Path, rows_between
from detente.stacks.factors import Row


@dataclass(frozen=True)
class Chosen:
    """``path`` holds the causes that are tested, ``rows`` what has to run for them in every block, the two ends among
    them, ``seconds`` what that takes; ``untested`` maps a cause to why it is not."""

    path: Path
    rows: tuple[Row, ...]
    seconds: float
    untested: dict[str, str] = field(default_factory=dict)


def choose(
    path: Path,
    cost_s: Callable[[Row], float],
    blocks: int,
    budget_s: float | None = None,
    expected: Callable[[Cause], float] = lambda cause: cause.guess,
    besides: Sequence[Row] = (),
) -> Chosen:
    """The causes of ``path`` that ``blocks`` blocks within ``budget_s`` hold, by what they are expected to move (a log
    ratio) over what they cost. ``cost_s``: seconds of a row's process; ``besides``: what runs in every block whatever
    is chosen, and is among the seconds. Each further cause doubles the rows, so a cause that is left out may be
    followed by none. A runtime comes and goes with the program that it runs, and what is switched before another cause
    waits for that one."""
    chosen = replace(path, causes=())
    untested: dict[str, str] = {}
    waiting = list(_units(path))

    def seconds_of(path: Path) -> float:
        return blocks * sum(cost_s(row) for row in (*_rows(path), *besides))

    while waiting:

        def worth(unit: tuple[Cause, ...], chosen: Path = chosen) -> float:
            more = seconds_of(_with(path, chosen, unit)) - seconds_of(chosen)
            return sum(abs(expected(c)) for c in unit) / max(more, 1e-9)

        there = {c.code for c in chosen.causes}
        ready = [unit for unit in waiting if all(not c.before or c.before in there for c in unit)]
        if not ready:
            untested |= {c.code: f"{c.before} is not tested" for unit in waiting for c in unit}
            break
        unit = max(ready, key=worth)
        waiting.remove(unit)
        longer = _with(path, chosen, unit)
        seconds = seconds_of(longer)
        if budget_s is None or seconds <= budget_s:
            chosen = longer
            continue
        why = too_long(blocks, seconds, budget_s)
        untested |= {c.code: why + c.otherwise for c in unit}
    return Chosen(chosen, _rows(chosen), seconds_of(chosen), untested)


def too_long(blocks: int, seconds: float, budget_s: float) -> str:
    """Why a row is not measured.

    >>> too_long(5, 1972.1, 1800.0)
    'with it 5 blocks take 1972 s, and the budget is 1800 s'
    """
    run = "a block takes" if blocks == 1 else f"{blocks} blocks take"
    return f"with it {run} {seconds:.0f} s, and the budget is {budget_s:.0f} s"


def _units(path: Path) -> list[tuple[Cause, ...]]:
    """The causes, those that only make sense together as one."""
    first = tuple(c for c in path.causes if c.first and not c.before)
    rest = [c for c in path.causes if c not in first]
    if first and (bound := next((c for c in rest if not c.before), None)):
        return [(*first, bound), *((c,) for c in rest if c is not bound)]
    return [(c,) for c in path.causes]


def _with(path: Path, chosen: Path, unit: tuple[Cause, ...]) -> Path:
    """In the order in which the path has them."""
    wanted = {c.code for c in (*chosen.causes, *unit)}
    return replace(path, causes=tuple(c for c in path.causes if c.code in wanted))


def _rows(path: Path) -> tuple[Row, ...]:
    between = rows_between(path, path.orders()).values() if path.causes else ()
    return tuple(dict.fromkeys((path.a, path.b, *between)))
