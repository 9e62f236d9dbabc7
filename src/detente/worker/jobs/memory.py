"""Memory: labelled peaks of a process that is never timed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from pathlib import Path

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.worker.events import Events
from detente.worker.opened import open_job


def run(job: Job, events: Events) -> Evidence:
    """Three steps, then what each source says, never merged. The second step meets a full optimizer state; before the
    third the process's peak is set back, which then is that of a step alone, without what compiling took."""
    opened = open_job(job, events)
    running = opened.running
    # The host's mappings are the harness's, and so are the batches that wait their turn; what a user's process would
    # hold starts here.
    opened.weights.clear()
    opened.batches.clear()
    del opened.placed[1:]
    losses = []
    peak, alone = 0, False
    for phase in ("first", "second", "third"):
        events.phase(phase)
        if phase == "third":
            peak = process_peak()
            alone = forget_peak()
        handle = running.step(opened.placed[0])
        losses.append(running.loss(handle))
        running.synchronise(handle)
        del handle
    found = {**running.memory(), "process_peak": max(peak, process_peak())}
    if alone:
        found["step_peak"] = process_peak()
    events.phase("reading")
    return Evidence(
        "ok",
        "done",
        losses=tuple(losses),
        memory=found,
        versions=opened.stack.versions(),
    )


def forget_peak() -> bool:
    """VmHWM is what is resident now, and that is what is in use: what the C library keeps of loading and compiling goes
    back to the system first. False where the kernel does not let a process say so."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def process_peak() -> int:
    """VmHWM in bytes: the most that this process ever had resident, its compiler's scratch included."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found.group(1)) * 1024 if found else 0
