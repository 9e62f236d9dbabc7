"""Ask stacks for their programs: one capture worker each, no clock and no block."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from detente.records.cell import Cell
from detente.records.evidence import Evidence
from detente.records.fault import CellFault
from detente.records.folders import cache_folder, data_folder, state_folder
from detente.records.job import Job, JobKind
from detente.session.interrupts import Interrupts
from detente.session.layout import lay_out
from detente.session.prepared import is_prepared, prepared_folder
from detente.session.progress import Progress, Sink
from detente.session.request import Request
from detente.session.spawn import spawn


@dataclass(frozen=True)
class Captured:
    """A cell and what its capture worker brought back. ``artefacts`` is where the evidence's program paths start."""

    cell: Cell
    evidence: Evidence
    artefacts: Path


def capture_programs(request: Request, sink: Sink) -> tuple[Captured, ...]:
    """Capture the programs of every stack of the request, in its order, on one workload.

    A stack that cannot run here is in the result with status ``skipped`` and the reason. Raises UsageFault for unknown
    names, CellFault when the weights that every stack loads cannot be made, KeyboardInterrupt when the user stops it.
    """
    layout = lay_out(replace(request, aa=False))
    artefacts = data_folder() / "artefacts"
    folder = f"capture-{os.getpid()}-{secrets.token_hex(2)}"
    caches = cache_folder() / "compile" / folder
    found: list[Captured] = []
    try:
        with Interrupts() as interrupts:
            one = _Worker(request, artefacts, caches, state_folder() / "logs" / folder, interrupts, sink)
            for cell in layout.cells:
                if cell.key in layout.skipped:
                    evidence = Evidence("skipped", "start", layout.skipped[cell.key])
                else:
                    evidence = one.run("capture", cell, one.prepared(cell))
                found.append(Captured(cell, evidence, artefacts))
    finally:
        shutil.rmtree(caches, ignore_errors=True)
    return tuple(found)


@dataclass
class _Worker:
    request: Request
    artefacts: Path
    caches: Path
    logs: Path
    interrupts: Interrupts
    sink: Sink

    def prepared(self, cell: Cell) -> Path:
        folder = prepared_folder(cell, self.request.seed, 4)
        contract = replace(cell.contract, feed="resident")
        if not is_prepared(folder, contract):
            maker = Cell(cell.workload, cell.size, "torch-eager", contract, cell.device, "prepare")
            evidence = self.run("prepare", maker, folder)
            if evidence.status != "ok":
                raise CellFault(
                    f"the weights of {cell.workload} could not be made: {evidence.reason}",
                    "`detente doctor` checks torch-eager, which makes them",
                )
        return folder

    def run(self, kind: JobKind, cell: Cell, prepared: Path) -> Evidence:
        cache = self.caches / cell.label.replace("/", "-")
        for place in (cache, prepared):
            place.mkdir(parents=True, exist_ok=True)
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        threads = self.request.threads or len(cpus)
        job = Job(kind, cell, self.request.seed, str(prepared), str(self.artefacts), str(cache), threads)
        title = f"{cell.workload} {cell.size} {cell.label}: {kind}"
        self.sink(Progress("start", title, cell=cell.key))
        spawned = spawn(
            job,
            self.logs / f"{kind}-{cell.label.replace('/', '-')}.log",
            self.interrupts,
            lambda phase: self.sink(Progress("phase", title, cell=cell.key, phase=phase)),
            self.request.limits,
            cpus[:threads],
        )
        if spawned.killed_by_user or self.interrupts.count:
            raise KeyboardInterrupt
        self.sink(Progress("end", f"{title} took {spawned.wall_s:.1f} s", cell=cell.key))
        return spawned.evidence
