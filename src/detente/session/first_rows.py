"""Which rows go first where the budget does not hold the blocks that a verdict needs for all of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from detente.records.cell import Cell
from detente.records.sample import process_median
from detente.records.session import Session
from detente.session.layout import is_twin

# Rows of one comparison beside the A/A twin: so many go first, and where even they do not fit, so few.
MOST, FEWEST = 3, 2
_NEAR = 1.25
# A difference that few blocks decide. Block by block, ratios of GPT-2 Small's steps scatter by 3 to 8 % on 2 virtual
# cores, and at five blocks of three rows an interval reaches up to 3.8 times that far: 1.15x was not decided in four
# sessions of twelve minutes.
_LARGE = 1.3


def rows_first(
    cells: Sequence[Cell], session: Session, fits: Callable[[Sequence[Cell], float], bool]
) -> tuple[Cell, ...]:
    """The rows of the next blocks: all of ``cells`` if they fit, else ``chosen_rows``. All of them again where not even
    the fewest come near: no order helps then.

    ``fits`` says whether the blocks that are still needed fit with these rows in so many times the time that is left.
    Who is fastest, and who differs most, is read from the blocks that ran; the verdicts' correction counts the pairs
    of all rows, so the choice spends nothing that was not paid for.
    """
    choices = [tuple(cells), *(chosen_rows(cells, session, n) for n in range(MOST, FEWEST - 1, -1))]
    for chosen in choices:
        if fits(chosen, 1.0):
            return chosen
    # What processes will take is an estimate, and a first process counts what later ones need not do.
    return choices[-1] if fits(choices[-1], _NEAR) else choices[0]


def chosen_rows(cells: Sequence[Cell], session: Session, number: int) -> tuple[Cell, ...]:
    """``number`` rows of every comparison, in their order, and the twins: the first named and the fastest others. Where
    none of these differs from the first by a factor that few blocks decide, the last of them makes way for the row that
    differs most: a budget that ends without a word has told nothing."""
    kept: set[str] = set()
    for group in dict.fromkeys(c.group for c in cells):
        rows = [c for c in cells if c.group == group and not is_twin(c)]
        steady = {c.key: _steady(c, session) for c in rows}
        apart = {key: _apart(seconds, steady[rows[0].key]) for key, seconds in steady.items()}
        others = sorted(rows[1:], key=lambda c: steady[c.key])
        going = others[: number - 1]
        if going and max(apart[c.key] for c in going) < _LARGE <= max(apart.values()):
            going[-1] = max(others, key=lambda c: apart[c.key])
        kept |= {c.key for c in (*rows[:1], *going)}
        kept |= {c.key for c in cells if c.group == group and is_twin(c)}
    return tuple(c for c in cells if c.key in kept)


def _apart(a: float, b: float) -> float:
    """How many times as long the longer one takes; 1 where one was not measured."""
    return max(a / b, b / a) if math.isfinite(a) and math.isfinite(b) and a > 0 and b > 0 else 1.0


def _steady(cell: Cell, session: Session) -> float:
    """Seconds per step so far; infinite where nothing was measured."""
    medians = [m for p in session.of(cell) if (m := process_median(p.evidence.samples)) is not None]
    return statistics.median(medians) if medians else math.inf
