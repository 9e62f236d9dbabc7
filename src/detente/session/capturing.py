"""Ask stacks for their programs: one capture worker each, no clock and no block."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from detente.records.cell import Cell
from detente.records.evidence import Evidence
from detente.records.fault import CellFault
from detente.records.job import JobKind
from detente.records.session import Process
from detente.session.interrupts import Interrupts
from detente.session.layout import lay_out
from detente.session.progress import Progress, Sink
from detente.session.request import Request
from detente.session.spawn import Spawned
from detente.session.underway import process_of
from detente.session.workers import Workers
from detente.stacks.catalogue import STACKS, StackEntry, find_entry


@dataclass(frozen=True)
class Captured:
    """A cell and what its capture worker brought back. ``artefacts`` is where the evidence's program paths start;
    ``process`` is the worker's record, None where none ran."""

    cell: Cell
    evidence: Evidence
    artefacts: Path
    process: Process | None = None


def capture_programs(request: Request, sink: Sink) -> tuple[Captured, ...]:
    """Capture the programs of every stack of the request, in its order, on one workload.

    A stack that cannot run here is in the result with status ``skipped`` and the reason. Raises UsageFault for unknown
    names, CellFault when the weights that every stack loads cannot be made, KeyboardInterrupt when the user stops it.
    """
    layout = lay_out(replace(request, aa=False))
    found: list[Captured] = []
    with Interrupts() as interrupts:
        workers = Workers(request, f"capture-{os.getpid()}-{secrets.token_hex(2)}", interrupts)
        try:
            for cell in layout.cells:
                process = None
                if not gives(find_entry(cell.stack)):
                    evidence = Evidence("skipped", "start", _gives_none(cell.stack))
                elif cell.key in layout.skipped:
                    evidence = Evidence("skipped", "start", layout.skipped[cell.key])
                else:
                    _prepare(workers, cell, sink)
                    spawned = _run(workers, "capture", cell, sink)
                    evidence, process = spawned.evidence, process_of("capture", cell, spawned)
                found.append(Captured(cell, evidence, workers.artefacts, process))
        finally:
            workers.forget_caches()
    return tuple(found)


def _gives_none(stack: str) -> str:
    """Said before anything is compiled: a capture takes minutes where the stack compiles."""
    able = ", ".join(e.name for e in STACKS.values() if gives(e))
    return f"{stack} gives no program away that can be counted; these do: {able}"


def gives(entry: StackEntry) -> bool:
    """Whether a capture brings something back."""
    return entry.programs or entry.operators


def _prepare(workers: Workers, cell: Cell, sink: Sink) -> None:
    maker = workers.maker(cell)
    if maker is None:
        return
    evidence = _run(workers, "prepare", maker, sink).evidence
    if evidence.status != "ok":
        raise CellFault(
            f"the weights of {cell.workload} could not be made: {evidence.reason}",
            "`detente doctor` checks torch-eager, which makes them",
        )


def _run(workers: Workers, kind: JobKind, cell: Cell, sink: Sink) -> Spawned:
    title = f"{cell.workload} {cell.size} {cell.label}: {kind}"
    sink(Progress("start", title, cell=cell.key))
    spawned = workers.run(
        kind, cell, lambda phase: sink(Progress("phase", title, cell=cell.key, phase=phase))
    )
    if spawned.killed_by_user or workers.interrupts.count:
        raise KeyboardInterrupt
    sink(Progress("end", f"{title} took {spawned.wall_s:.1f} s", cell=cell.key))
    return spawned
