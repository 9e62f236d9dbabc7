"""Who lets others go first, where the budget does not hold the blocks that a verdict needs for all rows.

Before anything ran a row rests whose first process alone would take a good part of the budget (Inductor compiles GPT-2
Small for minutes): what was measured in earlier sessions says so, else a guess. Behind the first block it is known what
processes take, and who is fastest.
"""

from __future__ import annotations

from collections.abc import Sequence

from detente.records.cell import Cell
from detente.records.folders import data_folder
from detente.records.verdict import LEAST_BLOCKS
from detente.session.budget import PLANNED_OVERTIME
from detente.session.estimate import replays_s
from detente.session.first_rows import FEWEST, rows_first
from detente.session.forecast import forecast
from detente.session.layout import is_twin
from detente.session.memory_runs import memory_cells
from detente.session.underway import Underway

# A first process beyond this share of the budget may have to wait.
_LARGE = 0.2


def rest_before(under: Underway) -> None:
    """Let rows rest before their first process, where all of them would not fit: those whose start costs most, and
    never the first named one or so many that no pair is left."""
    session, request, limit_s = under.ledger.session, under.request, under.budget.limit_s
    if limit_s is None or request.blocks is not None or session.rested or session.processes:
        return
    cells = under.layout.runnable()
    costs = forecast(request, cells, data_folder() / "sessions")
    under.budget.estimates.expect({key: cost.first_s for key, cost in costs.items()})
    for group in dict.fromkeys(c.group for c in cells):
        rows = [c for c in cells if c.group == group and not is_twin(c)]
        for cell in sorted(rows[1:], key=lambda c: -costs[c.key].first_s):
            going = [c for c in cells if c.key not in under.ledger.session.rested]
            left = [c for c in rows if c in going]
            large = costs[cell.key].first_s > _LARGE * limit_s
            whole_s = sum(costs[c.key].blocks_s(LEAST_BLOCKS) for c in going)
            if large and len(left) > FEWEST and whole_s > limit_s:
                _rest(
                    under,
                    [cell],
                    f"the budget of {limit_s:.0f} s does not hold {LEAST_BLOCKS} blocks of all rows, and its first "
                    f"process alone takes about {costs[cell.key].first_s:.0f} s",
                )


def turn(under: Underway, cells: list[Cell]) -> list[Cell]:
    """Of ``cells`` those whose turn it is: all, unless the budget does not hold the blocks that a verdict needs. Then
    some go first, and once they have their blocks all go on together, as far as it reaches."""
    session, budget = under.ledger.session, under.budget
    if budget.limit_s is None or under.request.blocks is not None:
        return cells
    whole = len(session.whole_blocks())
    lack = LEAST_BLOCKS - whole
    going = [c for c in cells if c.key not in session.rested]
    if whole and lack > 0:

        def fits(some: Sequence[Cell], times: float) -> bool:
            more = lack * budget.cost_s("time", some, session) + replays_s(some, session)
            return not budget.over(more / times, PLANNED_OVERTIME)

        first = {c.key for c in rows_first(going, session, fits)}
        resting = [c for c in going if c.key not in first]
        if resting:
            names = ", ".join(c.label for c in going if c.key in first and not is_twin(c))
            why = (
                f"the budget of {budget.limit_s:.0f} s holds {LEAST_BLOCKS} blocks of {names}, not of all rows: "
                "the first named row goes first, with the fastest others or the one that differs most"
            )
            _rest(under, resting, why)
            going = [c for c in going if c.key in first]
    if lack > 0:
        return going or cells
    everyone = budget.holds_block(cells, memory_cells(under), under.ledger.session)
    return cells if everyone or not going else going


def after_all(under: Underway, cells: list[Cell]) -> list[Cell]:
    """Where no more blocks are wanted: one of all rows, if some have not run at all and the budget holds it. What was
    asked for is shown, decided or not."""
    session, budget = under.ledger.session, under.budget
    late = [c for c in cells if c.key in session.rested and not session.every(c)]
    if not late or not budget.holds_block(cells, memory_cells(under), session):
        return []
    return cells


def _rest(under: Underway, cells: list[Cell], why: str) -> None:
    under.ledger.rest(cells, why)
    under.tally.say(f"{', '.join(c.label for c in cells)} let others go first: {why}")
