"""One worker outside any session: the checks of ``doctor`` and of ``bridge``, which load no prepared weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detente.records.cell import Cell
from detente.records.evidence import Evidence
from detente.records.fault import CellFault, MachineFault
from detente.records.folders import cache_folder
from detente.records.job import Job, JobKind
from detente.session.interrupts import Interrupts
from detente.session.layout import missing_reason
from detente.session.spawn import Spawned, spawn
from detente.stacks.catalogue import find_entry


def run_alone(
    kind: JobKind,
    cell: Cell,
    interrupts: Interrupts,
    on_phase: Callable[[str], None] = lambda phase: None,
    limits: dict[str, float] | None = None,
    options: dict[str, Any] | None = None,
) -> Spawned:
    """Run one job on every core that this process may use. Its folders are gone when this returns; below the cache
    folder, because a cell may fill more than a /tmp in memory holds."""
    root = cache_folder() / "alone"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        threads = len(os.sched_getaffinity(0))
        job = Job(kind, cell, 0, folder, folder, folder, threads, options=options or {})
        return spawn(job, Path(folder) / f"{kind}.log", interrupts, on_phase, limits)


def ask_alone(
    kind: JobKind,
    cell: Cell,
    done: str,
    options: dict[str, Any] | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
    about: str = "",
) -> Evidence:
    """The evidence of one job that was asked for by name and must end well. ``done`` is what it does, as a participle,
    and ``about`` what it does that to (default: the cell's workload).

    Raises MachineFault where the stack is not installed, CellFault with the reason when the job failed, and
    KeyboardInterrupt when the user stops it.
    """
    why = missing_reason(find_entry(cell.stack), cell.arm)
    if why:
        raise MachineFault(
            f"the stack {cell.stack} cannot run here: {why}", "`detente doctor` checks every stack"
        )
    with Interrupts() as interrupts:
        spawned = run_alone(kind, cell, interrupts, on_phase, options=options)
        if spawned.killed_by_user or interrupts.count:
            raise KeyboardInterrupt
    if spawned.evidence.status != "ok":
        raise CellFault(
            f"{about or cell.workload} could not be {done}: {spawned.evidence.reason}",
            f"it ended in phase {spawned.evidence.phase!r}",
        )
    return spawned.evidence
