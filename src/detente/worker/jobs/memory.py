"""Memory: labelled peaks of a process that is never timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.records.tensor_error import TensorError
from detente.stacks import process_memory
from detente.worker.events import Events
from detente.worker.opened import open_job
from detente.worker.prepared import map_batches
from detente.worker.reference import has_reference, map_reference, reference_name


def run(job: Job, events: Events) -> Evidence:
    """Three steps, then what each source says, never merged. The second step meets a full optimizer state; before the
    third the process's peak is set back, which then is that of a step alone, without what compiling took.

    They are the reference's three steps, and their losses are held against it as in a timed process: a row that leaves
    out here what takes memory, its backward pass for one, had the smallest figure of all and was proved elsewhere."""
    opened = open_job(job, events)
    running = opened.running
    shapes = [{name: array.shape for name, array in batch.items()} for batch in opened.batches]
    # Batches of other shapes are other programs, and the peak of a step would be that of compiling one.
    alike = all(shape == shapes[0] for shape in shapes)
    # The host's mappings are the harness's, and so are the batches that wait their turn; what a user's process would
    # hold starts here.
    opened.weights.clear()
    opened.batches.clear()
    del opened.placed[1:]
    losses = []
    peak, alone = 0, False
    for number, phase in enumerate(("first", "second", "third")):
        events.phase(phase)
        if number and alike:
            # One at a time, and mapped for as long as it is placed: none waits its turn in what is measured.
            opened.placed.clear()
            opened.placed.append(running.place(map_batches(Path(job.prepared))[number % len(shapes)]))
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
        errors=_errors(job, losses if alike else losses[:1]),
        memory=found,
        versions=opened.stack.versions(),
    )


def _errors(job: Job, losses: Sequence[float]) -> tuple[TensorError, ...]:
    """Of the losses, behind all that is measured; of none where the model is too large for a reference."""
    folder, contract = Path(job.prepared), job.cell.contract
    if not has_reference(folder, contract):
        return ()
    reference = map_reference(folder, reference_name(contract))
    told = (reference.loss_error(number, loss) for number, loss in enumerate(losses, 1))
    return tuple(error for error in told if error is not None)
