"""Memory: labelled peaks of a process that is never timed."""

from __future__ import annotations

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
    # The host's mapping of the weights is the harness's; what a user's process would hold starts here.
    opened.weights.clear()
    losses = []
    peak, alone = 0, False
    for i, phase in enumerate(("first", "second", "third")):
        events.phase(phase)
        if phase == "third":
            peak = process_peak()
            alone = forget_peak()
        handle = running.step(opened.placed[i % len(opened.placed)])
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
    """VmHWM is what is resident now. False where the kernel does not let a process say so."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def process_peak() -> int:
    """VmHWM in bytes: the most that this process ever had resident, its compiler's scratch included."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found.group(1)) * 1024 if found else 0
