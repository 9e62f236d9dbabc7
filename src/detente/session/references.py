"""Rows whose fp64 reference this machine cannot hold, and the size at which they are proved instead.

A reference is what every tensor of a row is held against. Where it does not fit, two of every kind of layer at full
width stand for the whole: the row is proved so at its own precision, in a process of its own, and of what is timed the
losses alone are compared with the other rows' (the rule ``losses-apart``). The row says so.
"""

from __future__ import annotations

from detente.records.cell import Cell
from detente.session.memory_cap import of_machine
from detente.session.needed_memory import reference_bytes
from detente.workloads.catalogue import find_size, find_workload


def proved_instead(cell: Cell) -> str:
    """The name of the size at which a row is proved at its own precision, because a reference at its own size would not
    fit; empty where it fits, nobody knows, or there is no such size."""
    workload = find_workload(cell.workload)
    cut = workload.cut(find_size(workload, cell.size))
    allowed = of_machine(cell.device)
    if not cut or cut == cell.size or allowed is None:
        return ""
    return cut if reference_bytes(cell) > allowed else ""
