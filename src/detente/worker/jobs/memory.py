"""Memory: labelled peaks of a process that is never timed."""

from __future__ import annotations

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks import process_memory
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
            peak = process_memory.peak()
            alone = process_memory.forget_peak()
        handle = running.step(opened.placed[0])
        losses.append(running.loss(handle))
        running.synchronise(handle)
        del handle
    # Read once for both: a page more between two readings, and the step's peak would be above the process's.
    last = process_memory.peak()
    found = {**running.memory(), "process_peak": max(peak, last)}
    if alone:
        found["step_peak"] = last
    events.phase("reading")
    return Evidence(
        "ok",
        "done",
        losses=tuple(losses),
        memory=found,
        versions=opened.stack.versions(),
    )
