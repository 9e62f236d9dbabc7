"""Replay: the reference takes stretches of other processes' windows again, from the state that was handed out before
each.

One process takes those of several rows: what it costs to start is paid once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.records.tensor_error import TensorError
from detente.records.window import MANY_STEPS, Replay
from detente.worker.advance import advance
from detente.worker.events import Events
from detente.worker.fair import Fair
from detente.worker.handed import UNWANTED, Changed, Handed, Kept, is_digest, map_handed
from detente.worker.maker import Maker, make_maker
from detente.worker.prepared import map_batches, map_weights, read_kinks
from detente.worker.reference import (
    RETURNED,
    STATE,
    Reference,
    Trace,
    make_reference,
    state_trace,
    with_errors,
)
from detente.workloads.catalogue import find_size, find_workload


class NotAState(Exception):
    """What was handed out is no state of this model; the text says what is wrong with it."""


def run(job: Job, events: Events) -> Evidence:
    """The errors of what was handed out, and of eager runs from the same state, against fp64: ``replays``."""
    events.phase("import")
    found: dict[str, tuple[Replay, ...]] = {}
    for name, folder in job.replays.items():
        found[name] = _taken_again(job, Path(folder), job.kept.get(name, ()), events)
    return Evidence("ok", "done", replays=found)


def _taken_again(job: Job, folder: Path, kept: tuple[str, ...], events: Events) -> tuple[Replay, ...]:
    """Of one process. What it said behind its window is what it handed out, and nothing that was written later."""
    if not kept:
        return (Replay(0, 0, reason="the timed process did not say what it handed out"),)
    said, *others = kept
    if others:
        return (Replay(0, 0, refused="the parent was told more than once what had been handed out"),)
    if said == UNWANTED:
        return (Replay(0, 0, refused="somebody else answered that what was handed out is not wanted"),)
    if not is_digest(said):
        return (Replay(0, 0, reason=said),)
    try:
        handed = map_handed(folder, said)
    except Changed as error:
        return (Replay(0, 0, refused=f"what was handed out was changed behind the window: {error}"),)
    if handed.stretches:
        return tuple(_again(job, stretch, events) for stretch in handed.stretches)
    reference = _reference(_steps(job, handed, events))
    region = job.cell.contract.region
    errors = reference.errors(_returned(handed.returned, region), RETURNED[region])
    return (Replay(0, 1, errors),)


def _again(job: Job, stretch: Kept, events: Events) -> Replay:
    try:
        reference = _reference(_stretches(job, stretch, events))
    except NotAState as error:
        # That is an answer, and no failure of the reference.
        told = TensorError("update", f"state ({error})"[:200], float("inf"), 0.0, 1.0, 1)
        return Replay(stretch.first, stretch.steps, (told,))
    errors = reference.errors(stretch.change, whole=STATE)
    return Replay(stretch.first, stretch.steps, errors, loss=reference.loss_error(1, stretch.loss))


def _reference(traces: Iterator[Trace]) -> Reference:
    """Of the fp64 run, which comes first, with the errors of those at the cell's own precision."""
    reference = make_reference(next(traces))
    for own in traces:
        reference = with_errors(reference, reference.errors(own))
    return reference


def _returned(outputs: Mapping[str, np.ndarray], region: str) -> Trace:
    """What one step of a region without state returned."""
    found = {n: a for n, a in outputs.items() if n != "loss"}
    forward = region == "forward"
    return Trace(
        (float(outputs["loss"]),), found if forward else {}, {} if forward else found, {}, {}, frozenset()
    )


def _runs(job: Job, maker: Maker, fairs: tuple[Fair, ...], events: Events) -> Iterator[tuple[Any, Fair]]:
    """(the reference at a precision, how it rounds): fp64, then the cell's own precision in every way. Each is built
    anew: what a user's own optimizer keeps to itself, no state resets."""
    contract, cell = job.cell.contract, job.cell
    workload = find_workload(cell.workload)
    size = find_size(workload, cell.size)
    for precision, fair in [("fp64", Fair()), *((contract.precision, f) for f in fairs)]:
        events.phase(f"replay-{precision}")
        with maker.running(fair, workload, size, contract, precision, cell.device, job.threads) as running:
            yield running, fair


def _stretches(job: Job, stretch: Kept, events: Events) -> Iterator[Trace]:
    folder = Path(job.prepared)
    batches = map_batches(folder)[: job.batches]
    maker = make_maker(job.cell.stack)
    fairs = maker.fair_runs(read_kinks(folder), many=stretch.steps > MANY_STEPS)
    turned = {fair: rows for fair in fairs if (rows := fair.batches(batches)) is not None}
    for running, fair in _runs(job, maker, tuple(turned), events):
        placed = [maker.place(fair, running, b) for b in turned[fair]]
        before = fair.weights(stretch.before)
        try:
            running.adopt(before)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise NotAState(f"{type(error).__name__}: {error}") from error
        loss = advance(running, placed, stretch.batches, stretch.at)
        yield replace(state_trace(before, running.state(), stretch.parameters), losses=(loss,))


def _steps(job: Job, handed: Handed, events: Events) -> Iterator[Trace]:
    for running, _ in _runs(job, make_maker(job.cell.stack), (Fair(),), events):
        running.load(map_weights(Path(job.prepared)))
        handle = running.step(running.place(handed.batch))
        outputs = {**running.outputs(handle), "loss": np.array(running.loss(handle))}
        yield _returned(outputs, job.cell.contract.region)
