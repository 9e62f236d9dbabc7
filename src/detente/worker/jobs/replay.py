"""Replay: the reference takes a stretch of another process's window again, from the state that was handed out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.records.tensor_error import TensorError
from detente.records.window import Replay, Window
from detente.worker.events import Events
from detente.worker.handed import Handed, map_handed
from detente.worker.prepared import map_batches, map_weights
from detente.worker.reference import STATE, Trace, make_reference, state_trace, with_errors
from detente.worker.torch_reference import advance, in_orders, reference_run
from detente.workloads.catalogue import find_size, find_workload


class NotAState(Exception):
    """What was handed out is no state of this model; the text says what is wrong with it."""


def run(job: Job, events: Events) -> Evidence:
    """The errors of what was handed out, and of eager runs from the same state, against fp64: ``window.replay``."""
    events.phase("import")
    handed = map_handed(Path(job.handed))
    if handed is None:
        return Evidence("failed", "import", "the timed process handed nothing out")
    stretch = handed.stretch
    try:
        traces = _traces(job, handed, events)
        reference = make_reference(next(traces))
        for own in traces:
            reference = with_errors(reference, reference.errors(own))
    except NotAState as error:
        # That is an answer, and no failure of the reference.
        told = TensorError("update", f"state ({error})"[:200], float("inf"), 0.0, 1.0, 1)
        return Evidence(
            "ok", "done", window=Window(replay=Replay(0, stretch.steps if stretch else 1, (told,)))
        )
    if stretch is not None:
        errors = reference.errors(state_trace(stretch.before, stretch.after, handed.parameters), whole=STATE)
        replay = Replay(stretch.first, stretch.steps, errors)
    else:
        replay = Replay(0, 1, reference.errors(_returned(handed.returned, job.cell.contract.region)))
    return Evidence("ok", "done", window=Window(replay=replay))


def _returned(outputs: Mapping[str, np.ndarray], region: str) -> Trace:
    """What one step of a region without state returned."""
    found = {n: a for n, a in outputs.items() if n != "loss"}
    forward = region == "forward"
    return Trace(
        (float(outputs["loss"]),), found if forward else {}, {} if forward else found, {}, {}, frozenset()
    )


def _traces(job: Job, handed: Handed, events: Events) -> Iterator[Trace]:
    """The fp64 run, then each eager run at the cell's own precision."""
    contract, cell = job.cell.contract, job.cell
    workload = find_workload(cell.workload)
    size = find_size(workload, cell.size)
    prepared = Path(job.prepared)
    orders = (
        list(in_orders(map_batches(prepared)[: job.batches])) if handed.stretch else [[dict(handed.batch)]]
    )
    for precision, order in [("fp64", 0), *((contract.precision, i) for i in range(len(orders)))]:
        events.phase(f"replay-{precision}")
        with reference_run(workload, size, contract, precision, cell.device, job.threads) as running:
            placed = [running.place(b) for b in orders[order]]
            if handed.stretch is not None:
                try:
                    running.adopt(handed.stretch.before)
                except (KeyError, ValueError, TypeError, RuntimeError) as error:
                    raise NotAState(f"{type(error).__name__}: {error}") from error
                advance(running, placed, handed.stretch.batches)
                yield state_trace(handed.stretch.before, running.state(), handed.parameters)
            else:
                running.load(map_weights(prepared))
                handle = running.step(placed[0])
                outputs = {**running.outputs(handle), "loss": np.array(running.loss(handle))}
                yield _returned(outputs, contract.region)
