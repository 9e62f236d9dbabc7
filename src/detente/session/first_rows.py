"""Which rows go first where the budget does not hold the blocks that a verdict needs for all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from detente.records.cell import Cell
from detente.records.sample import process_median
from detente.records.session import Session
from detente.session.layout import is_twin

# Rows of one comparison beside the A/A twin: so many go first, and where even they do not fit, so few.
MOST, FEWEST = 3, 2
_NEAR = 1.25


def rows_first(
    cells: Sequence[Cell], session: Session, fits: Callable[[Sequence[Cell], float], bool]
) -> tuple[Cell, ...]:
    """The rows of the next blocks: all of ``cells`` if they fit, else the first named and the fastest others of every
    comparison, with the A/A twins. All of them again where not even the fewest come near: no order helps then.

    ``fits`` says whether the blocks that are still needed fit with these rows in so many times the time that is left.
    Who is fastest is read from the blocks that ran; the verdicts' correction counts the pairs of all rows, so the
    choice spends nothing that was not paid for.
    """
    choices = [tuple(cells), *(chosen_rows(cells, session, n) for n in range(MOST, FEWEST - 1, -1))]
    for chosen in choices:
        if fits(chosen, 1.0):
            return chosen
    # What processes will take is an estimate, and a first process counts what later ones need not do.
    return choices[-1] if fits(choices[-1], _NEAR) else choices[0]


def chosen_rows(cells: Sequence[Cell], session: Session, number: int) -> tuple[Cell, ...]:
    """``number`` rows of every comparison, the first named and the fastest others, and the twins; in their order."""
    kept: set[str] = set()
    for group in dict.fromkeys(c.group for c in cells):
        rows = [c for c in cells if c.group == group and not is_twin(c)]
        others = sorted(rows[1:], key=lambda c: _steady(c, session))
        kept |= {c.key for c in (*rows[:1], *others[: number - 1])}
        kept |= {c.key for c in cells if c.group == group and is_twin(c)}
    return tuple(c for c in cells if c.key in kept)


def _steady(cell: Cell, session: Session) -> float:
    """Seconds per step so far; infinite where nothing was measured."""
    medians = [m for p in session.of(cell) if (m := process_median(p.evidence.samples)) is not None]
    return statistics.median(medians) if medians else float("inf")
