"""Memory: labelled peaks of a process that is never timed."""

from __future__ import annotations

import re
from pathlib import Path

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.worker.events import Events
from detente.worker.opened import open_job


def run(job: Job, events: Events) -> Evidence:
    """Two steps (the second one meets a full optimizer state), then what each source says, never merged."""
    opened = open_job(job, events)
    running = opened.running
    # The host's mapping of the weights is the harness's; what a user's process would hold starts here.
    opened.weights.clear()
    losses = []
    for i, phase in enumerate(("first", "second")):
        events.phase(phase)
        handle = running.step(opened.placed[i % len(opened.placed)])
        losses.append(running.loss(handle))
        running.synchronise(handle)
        del handle
    peak = process_peak()
    events.phase("reading")
    return Evidence(
        "ok",
        "done",
        losses=tuple(losses),
        memory={**running.memory(), "process_peak": peak},
        versions=opened.stack.versions(),
    )


def process_peak() -> int:
    """VmHWM in bytes: the most that this process ever had resident, its compiler's scratch included."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found.group(1)) * 1024 if found else 0
