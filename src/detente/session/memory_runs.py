"""Memory runs are processes of their own: what they read would disturb a clock, and a clock them."""

from __future__ import annotations

from detente.records.cell import Cell
from detente.session.layout import is_twin
from detente.session.underway import Underway


def memory_cells(under: Underway) -> list[Cell]:
    """The rows whose memory is measured: each once, its A/A twin not again."""
    return [c for c in under.alive() if not is_twin(c)] if under.request.memory else []


def run_memory(under: Underway) -> None:
    """One memory run of each row that has none yet, as far as the budget reaches."""
    for cell in memory_cells(under):
        session = under.ledger.session
        if session.every(cell, "memory") and not session.to_run_again(cell, "memory"):
            continue
        if under.budget.over(under.budget.cost_s("memory", [cell], session)):
            under.tally.say(f"the budget leaves no room for the memory run of {cell.label}")
            continue
        under.ledger.keep(under.process("memory", cell))
