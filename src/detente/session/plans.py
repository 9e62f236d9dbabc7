"""What rows will hold, before they run: a worker of each row plans it, once per row, source and environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from detente.records.cell import Cell
from detente.records.evidence import Evidence
from detente.records.job import JobKind
from detente.records.session import Process
from detente.session.beside import run_beside
from detente.session.interrupts import Interrupts
from detente.session.known_plan import plan_file
from detente.session.layout import is_twin, lay_out
from detente.session.memory_runs import memory_cells
from detente.session.memory_watch import available
from detente.session.progress import Progress, Sink
from detente.session.proofs import keep_proof, read_proof
from detente.session.request import Request
from detente.session.underway import Stopped, Underway
from detente.session.workers import Workers


def run_plans(under: Underway, cells: Sequence[Cell]) -> None:
    """Plans those of ``cells`` whose memory is measured, and says which will not fit. What cannot be planned runs all
    the same."""
    wanted = []
    for cell in memory_cells(under):
        if cell.arm or cell not in cells:
            continue  # no stack plans itself under an arm
        if under.ledger.session.every(cell, "plan"):
            continue
        known = read_proof(plan_file(cell))
        if known is not None:
            _keep(under, known)
        else:
            wanted.append(cell)
    for process in run_beside(under, "plan", wanted):
        if process.evidence.status == "ok":
            keep_proof(plan_file(process.cell), process)
            _keep(under, process)
        else:
            why = process.evidence.reason
            under.tally.tell(
                "note", f"{process.cell.label}: its memory is not planned: {why}", cell=process.cell.key
            )


def _keep(under: Underway, process: Process) -> None:
    under.ledger.keep(process)
    if (short := shortfall(process.evidence.memory)) is not None:
        under.tally.tell("note", f"{process.cell.label}: {short}", cell=process.cell.key)


def shortfall(plan: dict[str, int]) -> str | None:
    """Why a process of this plan will not fit this machine, in words; None where it will or nobody knows."""
    wanted, there = plan.get("planned_process"), available()
    if wanted is None or wanted <= there:
        return None
    return f"its process is planned to hold {wanted / 1e9:.3g} GB, and this machine has {there / 1e9:.3g} GB"


def plan_of_rows(request: Request, sink: Sink) -> dict[Cell, Evidence]:
    """The plan of every row of a request, its twin's once; nothing is measured. Raises Stopped on an interrupt."""
    layout = lay_out(request)
    found: dict[Cell, Evidence] = {}
    with Interrupts() as interrupts:
        workers = Workers(request, f"plans-{time.time_ns()}", interrupts)
        try:
            for cell in layout.cells:
                if is_twin(cell):
                    continue
                if cell.key in layout.skipped:
                    found[cell] = Evidence("skipped", "start", layout.skipped[cell.key])
                    continue
                title = f"{cell.workload} {cell.size} {cell.label}: plan"
                found[cell] = plan_once(workers, "plan", cell, plan_file(cell), title, sink, interrupts)
        finally:
            workers.forget_caches()
    return found


def plan_once(
    workers: Workers, kind: JobKind, cell: Cell, file: Path, title: str, sink: Sink, interrupts: Interrupts
) -> Evidence:
    """The plan in ``file``, or of a worker, which is then kept there. Raises Stopped on an interrupt."""
    if (known := read_proof(file)) is not None:
        return known.evidence
    if interrupts.count:
        raise Stopped
    sink(Progress("start", title, cell=cell.key))
    done = workers.run(kind, cell, lambda phase: sink(Progress("phase", title, cell=cell.key, phase=phase)))
    if done.killed_by_user:
        raise Stopped
    sink(Progress("end", f"{title} took {done.wall_s:.1f} s", cell=cell.key))
    if done.evidence.status == "ok":
        process = Process(cell, kind, -1, 0, done.started, done.wall_s, done.foreign, done.evidence)
        keep_proof(file, process)
    return done.evidence
