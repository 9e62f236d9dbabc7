"""A job's stack and workload, started and built, with the seconds that it took."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detente.programs.probe import program_probe
from detente.records.job import Job
from detente.stacks.catalogue import find_entry, make_stack
from detente.stacks.protocol import Capture, Running, Stack, build
from detente.worker.artefacts import need_unchanged
from detente.worker.clock import now
from detente.worker.cold import count_files, watch_cache
from detente.worker.events import Events
from detente.worker.prepared import knowing, map_batches, map_weights
from detente.worker.process_state import ProcessState, take_state
from detente.worker.window import Rotation
from detente.workloads.catalogue import find_size, find_workload
from detente.workloads.workload import Size, Workload

if TYPE_CHECKING:
    from detente.worker.watch.in_jax import CacheReads


@dataclass
class Opened:
    """Everything that the jobs work on. ``batches`` are the host arrays, ``placed`` the device's."""

    job: Job
    stack: Stack
    workload: Workload
    size: Size
    running: Running
    weights: dict[str, np.ndarray]
    batches: list[dict[str, np.ndarray]]
    placed: list[Any]
    platform: str
    import_s: float
    build_s: float
    environment: dict[str, dict[str, str]]
    cache_before: int
    cache_reads: CacheReads | None
    # Before the stack's file was loaded; and at both ends of the sampled window, where a job has one.
    began: ProcessState
    window: tuple[ProcessState, ProcessState] | None = None
    # The newest handle of that window, and whether Python's collector was on at its end.
    done: Any = None
    collector: bool = False
    # The loss of the first batch from the loaded weights: of the first step, and of one behind the window.
    first_loss: float | None = None
    later_loss: float | None = None
    # Whether the prepared weights were loaded and no step was taken since.
    loaded: bool = False

    @cached_property
    def captures(self) -> tuple[Capture, ...]:
        """The stack's programs: asked for once, because lowering again takes seconds."""
        return self.running.programs()

    @cached_property
    def counted(self) -> dict[str, Any] | None:
        """What is counted in the program before optimisation; None of a stack that gives none away."""
        found = next((c for c in self.captures if c.form == "hlo"), None)
        return None if found is None else program_probe(found.data, found.form)

    def feed(self, taken: int = 0) -> Rotation:
        """Where the clock's steps get their batches: the placed ones in rotation, or a DataLoader and a placing
        inside the clock, when the contract says so. ``taken``: steps that were fed since the weights were loaded."""
        if self.job.cell.contract.feed == "resident":
            return Rotation(self.placed, taken)
        from detente.workloads.feed import (
            Feed,
            make_loader,
        )  # torch's loader: only where the contract asks for it

        # Entered, or it has no thread and gives nothing. Never left: the thread is a daemon, it sleeps while its queue
        # is full, and this process ends after one job.
        start = taken % len(self.batches)
        loader = make_loader(
            [*self.batches[start:], *self.batches[:start]],
            self.job.cell.contract.loader_workers,
            pin=getattr(self.running, "takes_pinned", False),
        )
        endless = Feed(loader).__enter__()
        return Rotation(self.batches, taken, lambda: self.running.place(next(endless)))


def open_job(job: Job, events: Events, *, place: bool = True) -> Opened:
    """Import the framework, build the workload, load the prepared weights, ``place`` the batches."""
    # Before a user's file is loaded, which finding its entry does.
    before, began = dict(os.environ), take_state()
    entry = find_entry(job.cell.stack)
    cache_before = count_files(job.cache)
    events.phase("import")
    begun = now()
    stack = make_stack(entry)
    if job.foreign:
        need_unchanged(map(Path, job.foreign.values()))
        stack.foreign = dict(job.foreign)  # type: ignore[attr-defined]  # of a stack that takes another's program
    platform = stack.start(job.cell.device, job.cell.contract.precision, job.threads)
    import_s = now() - begun
    after, reads = dict(os.environ), watch_cache()

    events.phase("build")
    begun = now()
    workload = find_workload(job.cell.workload)
    with _undrawn():
        size = knowing(find_size(workload, job.cell.size), Path(job.prepared))
        running = build(stack, job.cell.arm, workload, size, job.cell.contract)
    weights = map_weights(Path(job.prepared))
    running.load(weights)
    build_s = now() - begun
    batches = map_batches(Path(job.prepared))[: job.batches]
    placed = [running.place(batch) for batch in batches] if place else []
    changed = {k: after.get(k, "") for k in after.keys() | before.keys() if before.get(k) != after.get(k)}
    return Opened(
        job,
        stack,
        workload,
        size,
        running,
        weights,
        batches,
        placed,
        platform,
        import_s,
        build_s,
        {"before": before, "after": changed},
        cache_before,
        reads,
        began,
    )


def _undrawn() -> AbstractContextManager[Any]:
    """A torch module's own first weights are not drawn: the prepared ones follow (GPT-2 Small: 2.8 s, without 0.3)."""
    if "torch" not in sys.modules:
        return nullcontext()
    from detente.stacks.torch_undrawn import undrawn

    return undrawn()
