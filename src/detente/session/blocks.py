"""The blocks: every row once, in seeded random order, again and again until the judge or the budget has enough."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from pathlib import Path

from detente.records.cell import Cell
from detente.session.first_rows import FEWEST, chosen_rows
from detente.session.layout import is_twin
from detente.session.memory_runs import memory_cells
from detente.session.plans import run_plans
from detente.session.ready import make_ready
from detente.session.replaying import Turns
from detente.session.resting import after_all, turn
from detente.session.underway import Underway
from detente.worker.handed import answer
from detente.worker.probes import ALWAYS, PROBES

# Blocks that are run where no judge is at hand to ask for more or fewer (scipy is not installed).
UNJUDGED_BLOCKS = 5


def run_blocks(under: Underway) -> None:
    """Run blocks until no more are wanted, or none fits."""
    done = {p.block for p in under.ledger.session.processes if p.kind == "time"}
    block = max(done, default=-1) + 1
    turns = Turns(under)
    try:
        while cells := _next(under):
            _one_block(under, block, _ordered(under, block, cells), turns)
            block += 1
            whole = len(under.ledger.session.whole_blocks())
            if whole:
                under.tally.tell("block", f"block {whole} is whole")
    finally:
        turns.forget()


def _ordered(under: Underway, block: int, cells: Sequence[Cell]) -> list[Cell]:
    """The order inside one block: seeded, and each row comes first, last and between equally often: what a process
    finds of a machine hangs on what ran before it."""
    ordered, size = list(cells), len(cells)
    random.Random(f"{under.request.seed}/{block // size}").shuffle(ordered)
    ordered = ordered[block % size :] + ordered[: block % size]
    if under.request.budget_s and not under.ledger.session.whole_blocks():
        # The twin last: by then it is known whether there is time for more than one block.
        ordered.sort(key=is_twin)
    return ordered


def _one_block(under: Underway, block: int, cells: Sequence[Cell], turns: Turns) -> None:
    late = [c for c in cells if not under.ledger.session.every(c)]
    if late:  # rows that let others go first are proved, prepared and planned now; the others have been
        make_ready(under, late)
        run_plans(under, late)
        alive = under.alive()
        cells = [c for c in cells if c in alive]
    for order, cell in enumerate(cells):
        session = under.ledger.session
        first, twin = not any(p.evidence.status == "ok" for p in session.of(cell)), is_twin(cell)
        if twin and first and under.budget.only_block(_fewest(under, cells), session):
            _drop_twin(under, cell)
            continue
        handed, turn = turns.folder(cell, block), turns.has(cell, block)

        def over(phase: str, folder: Path = handed, wanted: bool = turn) -> None:
            if phase == "window":
                answer(folder, wanted)

        process = under.process(
            "time",
            cell,
            block=block,
            order=order,
            full_proof=first and not twin,
            probes=PROBES if first and not twin else ALWAYS,
            on_phase=over,
            handed=str(handed),
        )
        under.ledger.keep(process)
        turns.over(process, handed, turn)
        if process.evidence.status == "skipped":
            # It turned out not to run here (no such device, no TF32): nor do its twins.
            under.ledger.skip(under.layout.alike(cell), process.evidence.reason)
    turns.take(block)


def _drop_twin(under: Underway, cell: Cell) -> None:
    why = f"the budget of {under.request.budget_s:.0f} s holds one block, and an A/A pair needs two"
    under.ledger.skip([cell], why)
    under.tally.tell("note", f"{cell.label} is skipped: {why}", cell=cell.key)


def _fewest(under: Underway, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The rows of the shortest block that could follow."""
    return chosen_rows(cells, under.ledger.session, FEWEST)


def _next(under: Underway) -> list[Cell]:
    """The rows of the next block; none when no more are wanted, none fits, or no row is left."""
    cells = under.alive()
    if not cells:
        return []
    if not _wanted(under):
        return after_all(under, cells)
    session, request, budget = under.ledger.session, under.request, under.budget
    whole = len(session.whole_blocks())
    cells, memory = turn(under, cells), memory_cells(under)
    if not whole:
        return cells
    if not budget.holds_block(cells, memory, session):
        cost = budget.cost_s("time", cells, session)
        under.tally.say(
            f"the budget of {request.budget_s:.0f} s leaves no room for another block (about {cost:.0f} s)"
        )
        return []
    settled = request.blocks or UNJUDGED_BLOCKS
    # Behind the settled number it is looked at again after as many.
    left = settled - whole % settled if request.blocks_at_most else max(1, settled - whole)
    under.tally.total = under.tally.done + left * len(cells) + len(memory)
    return cells


def _wanted(under: Underway) -> bool:
    """Whether another block is wanted: asked of the judge, bounded by the user's number."""
    session, request = under.ledger.session, under.request
    whole = len(session.whole_blocks())
    if under.ledger.run_again() & {c.key for c in under.alive()}:
        return True  # a row that was killed is owed a run, whatever the others have
    if request.blocks is not None:
        return whole < request.blocks or _further(under, whole, request.blocks)
    if importlib.util.find_spec("scipy") is None:
        return whole < UNJUDGED_BLOCKS
    if whole:
        from detente.judge import more_blocks

        decision = more_blocks(session)
        if not decision:
            under.tally.say(decision.reason)
            return False
    return True


def _further(under: Underway, whole: int, settled: int) -> bool:
    """Whether a block behind the ``settled`` number is wanted. The question is asked where the judge counts a look
    (``judge/looks.py``), and nowhere between."""
    if whole >= (under.request.blocks_at_most or settled):
        return False
    if whole % settled:
        return True
    if not under.open_still(under.ledger.session):
        return False
    under.tally.say(f"not settled after {whole} blocks: up to {settled} more are run")
    return True
