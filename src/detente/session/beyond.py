"""Rows that no machine of this size can hold: known from the number of parameters, before a gigabyte is written.

Weights and what the optimizer keeps are there at once on every stack; gradients need not be (the bridge's form `inside`
uses each up before the next is made), and activations depend on the program. So this is a lower bound, and a row beyond
it is out of memory without being tried: trying took the machine's memory and minutes, to end in the same word. Every
other row is tried, under its cap.
"""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from detente.records.cell import Cell
from detente.records.chip import Chip
from detente.records.evidence import Evidence
from detente.session.memory_cap import of_machine
from detente.session.needed_memory import kept_bytes, step_bytes
from detente.session.underway import Underway
from detente.session.unmade import never_timed


def beyond_machine(cell: Cell, cap: int | None = None) -> str:
    """Why a row cannot fit, in words; empty where it may. ``cap``: bytes that the request allows a worker, which may be
    less than the machine has."""
    if of_machine(cell.device) is None:
        return ""  # an accelerator's memory is another one
    total = psutil.virtual_memory().total
    allowed, least = min(total, cap or total), kept_bytes(cell)
    if least <= allowed:
        return ""
    where = "this machine has" if allowed == total else "a worker is allowed"
    return (
        f"not tried: its weights and optimizer state alone are {least / 1e9:.3g} GB ({step_bytes(cell) / 1e9:.3g} GB "
        f"with all gradients), and {where} {allowed / 1e9:.3g} GB"
    )


def beyond_chip(cell: Cell, chip: Chip) -> Evidence | None:
    """The plan of a row that no form of any program can fit on a chip; None where it may. Nothing is compiled: its
    arguments alone are more than the chip has, and both figures are what it holds at least."""
    least = kept_bytes(cell)
    if least <= chip.memory:
        return None
    why = (
        f"not compiled: its weights and optimizer state alone are {least / 1e9:.3g} GB, and {chip.name} has "
        f"{chip.memory / 1e9:.3g} GB"
    )
    return Evidence("ok", "plan", why, memory={":arguments": least, ":peak": least})


def leave_out(under: Underway, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that may fit; the others end here, out of memory."""
    left = []
    gone = under.ledger.session.dead()
    for cell in cells:
        why = "" if cell.key in gone else beyond_machine(cell, under.request.memory_cap)
        if why:
            under.ledger.keep(never_timed(cell, Evidence("oom", "plan", why)))
            under.tally.tell("note", f"{cell.label}: {why}", cell=cell.key)
        else:
            left.append(cell)
    return left
