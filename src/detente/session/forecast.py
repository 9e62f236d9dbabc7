"""What a request would cost, before anything ran: from an earlier session of the same cells, else a guess."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from detente.records.cell import Cell
from detente.records.fault import StoreFault
from detente.records.session import TWIN, Session
from detente.session.layout import is_twin
from detente.session.needed_memory import reference_bytes, step_bytes
from detente.session.references import proved_instead
from detente.session.request import Request
from detente.stacks.catalogue import find_entry
from detente.store.spool import read_spool
from detente.workloads.catalogue import find_size, find_workload

# Only the newest sessions are looked at: older ones say little of today's machine, and every file takes time to read.
_LOOK_BACK = 8
# A guess, where nothing was measured: what a process takes beside its steps (interpreter, framework, build, proofs),
# how many steps it takes in all, the first process of a row and a later one, and what a core computes in a second.
_FIRST_S, _FIRST_STEPS = 20.0, 25
_LATER_S, _LATER_STEPS = 10.0, 12
_FLOPS_PER_CORE = 45e9


@dataclass(frozen=True)
class Cost:
    """Seconds of the first and of a later process of a cell; ``source`` is the session they were measured in, or
    empty for a guess."""

    first_s: float
    later_s: float
    source: str = ""

    def blocks_s(self, number: int) -> float:
        """Seconds of the cell's processes in so many blocks."""
        return self.first_s + (number - 1) * self.later_s


@dataclass(frozen=True)
class Memory:
    """Bytes: what one training process and the fp64 reference hold at least, activations not counted (None where the
    number of parameters is not known), and what the machine has, in all and now."""

    step: int | None
    reference: int | None
    total: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether the larger of both is less than the machine has at all."""
        return max(self.step or 0, self.reference or 0) < self.total


def forecast(request: Request, cells: Sequence[Cell], sessions: Path) -> dict[str, Cost]:
    """The cost of every cell by its key."""
    found: dict[str, Cost] = {}
    for spool in sorted(sessions.glob("*.jsonl"))[: -_LOOK_BACK - 1 : -1]:
        try:
            session = read_spool(spool)
        except StoreFault:  # a file that is no session is another command's news
            continue
        for cell in cells:
            measured = _measured(session, cell) if cell.key not in found else None
            if measured is not None:
                found[cell.key] = measured
    return {c.key: found.get(c.key) or _guess(c, request.threads) for c in cells}


def _measured(session: Session, cell: Cell) -> Cost | None:
    # The second row of an A/A pair costs what the first does.
    like = replace(cell, label=cell.label.removesuffix(TWIN))
    walls = [p.wall_s for p in session.of(like) if p.evidence.status == "ok"]
    return Cost(walls[0], statistics.median(walls[1:]), session.id) if len(walls) > 1 else None


def _guess(cell: Cell, threads: int | None) -> Cost:
    workload = find_workload(cell.workload)
    flops = workload.flops(find_size(workload, cell.size), cell.contract.region)
    step_s = flops / (_FLOPS_PER_CORE * (threads or len(os.sched_getaffinity(0))))
    entry = find_entry(cell.stack)
    layers = workload.layers(find_size(workload, cell.size))
    # The twin meets the cache that its sibling filled.
    compile_s = entry.layer_s * layers if entry.compiles and not is_twin(cell) else 0.0
    return Cost(_FIRST_S + compile_s + _FIRST_STEPS * step_s, _LATER_S + _LATER_STEPS * step_s)


def memory_of(cells: Sequence[Cell]) -> Memory:
    """Of the largest of the cells' rows; a row that is proved at a smaller size has the reference of that."""
    machine = psutil.virtual_memory()
    step = max((step_bytes(c) for c in cells), default=0)
    reference = max((reference_bytes(_proved(c)) for c in cells), default=0)
    return Memory(step or None, reference or None, machine.total, machine.available)


def _proved(cell: Cell) -> Cell:
    return replace(cell, size=proved_instead(cell) or cell.size)
