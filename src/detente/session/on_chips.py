"""What rows would hold on chips that are not here: a worker of each row compiles it for the chip, once per source,
environment and row."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from detente.environments.place import folder_of, packages_of, read_record
from detente.records.cell import Cell
from detente.records.chip import Chip
from detente.records.evidence import Evidence
from detente.records.fault import MachineFault
from detente.session.beyond import beyond_chip
from detente.session.interrupts import Interrupts
from detente.session.known_plan import plan_file
from detente.session.layout import lay_out
from detente.session.plans import plan_once
from detente.session.progress import Sink
from detente.session.request import Request
from detente.session.spawn import CHIPS_ENVIRONMENT
from detente.session.workers import Workers

# The stacks whose programs a compiler makes that needs no device.
STACKS = ("jax", "jax-scan", "detente")


def plan_on_chips(request: Request, chips: tuple[Chip, ...], sink: Sink) -> Iterator[tuple[Cell, Evidence]]:
    """Each row with its plan on each chip, as they are made. Raises MachineFault where the compilers are not installed,
    Stopped on an interrupt."""
    if packages_of(CHIPS_ENVIRONMENT) is None:
        raise MachineFault(
            "the compilers for chips that are not here are not installed",
            f"detente stacks add {CHIPS_ENVIRONMENT}   (no driver and no device is needed)",
        )
    with Interrupts() as interrupts:
        workers = Workers(request, f"chips-{time.time_ns()}", interrupts)
        try:
            for chip in chips:
                layout = lay_out(replace(request, stacks=request.stacks or STACKS, device=chip.name))
                for cell in layout.cells:
                    if cell.key in layout.skipped:
                        yield cell, Evidence("skipped", "start", layout.skipped[cell.key])
                        continue
                    if (beyond := beyond_chip(cell, chip)) is not None:
                        yield cell, beyond
                        continue
                    # Without a cap: weights that nobody touches are addresses, and take no memory.
                    title = f"{cell.workload} {cell.size} {cell.label}: compiling for {cell.device}"
                    yield cell, plan_once(workers, "fits", cell, _file(cell), title, sink, interrupts)
        finally:
            workers.forget_caches()


def _file(cell: Cell) -> Path:
    """Where a plan is cached: beside the plans of this machine, with the compilers' versions in its name."""
    record = read_record(folder_of(CHIPS_ENVIRONMENT))
    versions = sorted(record.installed.items()) if record is not None else []
    known = plan_file(cell)
    return known.with_name(f"{hashlib.sha256(repr((known.name, versions)).encode()).hexdigest()[:24]}.json")
