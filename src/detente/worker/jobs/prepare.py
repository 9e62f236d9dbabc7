"""Prepare: weights, batches and the fp64 references of a contract, made once by the workload's maker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.contract import Contract
from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.worker.advance import advance
from detente.worker.buffers import Ahead, held_already
from detente.worker.clock import now
from detente.worker.events import Events
from detente.worker.fair import Fair
from detente.worker.handed import can_hold, states_bytes
from detente.worker.jobs.weights import make_weights
from detente.worker.maker import Maker, make_maker
from detente.worker.prepared import map_batches, map_weights, read_kinks
from detente.worker.reference import (
    Reference,
    Trace,
    make_reference,
    reference_name,
    state_trace,
    window_name,
    with_errors,
    write_reference,
)
from detente.worker.three_steps import ThreeSteps, three_steps
from detente.worker.window import is_slow, states
from detente.workloads.catalogue import find_size, find_workload

# Steps that are proved from the loaded weights, the three timed ones among them, by the seconds of an fp64 step: as
# many as a model can afford, because what goes wrong on a schedule goes wrong late.
_PROVED = ((0.02, 35), (0.2, 19), (float("inf"), 8))
# Seconds that the losses of the other batches at the loaded weights may take.
_ROTATED_S = 1.0


def run(job: Job, events: Events) -> Evidence:
    """Fill the prepared folder with whatever it lacks."""
    events.phase("import")
    folder, cell = Path(job.prepared), job.cell
    workload = find_workload(cell.workload)
    size = find_size(workload, cell.size)
    contract = cell.contract

    maker = make_maker(cell.stack)
    events.phase("weights")
    make_weights(maker, job)

    weights, batches = map_weights(folder), map_batches(folder)
    three: Reference | None = None
    window: Reference | None = None
    versions: dict[str, str] = {}
    loss = float("nan")
    ahead: Ahead | None = None
    for precision, fair in [
        ("fp64", Fair()),
        *((contract.precision, f) for f in maker.fair_runs(read_kinks(folder))),
    ]:
        turned = fair.batches(batches)
        if turned is None:
            continue
        events.phase(f"reference-{precision}")
        with maker.running(fair, workload, size, contract, precision, cell.device, job.threads) as running:
            versions = running.stack.versions()
            began = fair.weights(weights)
            running.load(began)
            placed = [maker.place(fair, running, b) for b in turned]
            done, gradients = _steps(maker, running, placed, contract.region, events)
            trace = replace(done.trace(running, began, contract.region, moved=True), **gradients)
            if three is not None and fair.order and not _same_loss(three, done.losses[0]):
                continue  # another order of rows is another function here: one order has to do
            own = None if three is None else fair.judged(three.errors(trace))
            three = make_reference(trace) if own is None or three is None else with_errors(three, own)
            del trace
            steps = window.steps if window is not None else _proved(done.seconds[2])
            ahead = ahead or _ahead(job, weights, done.seconds[2])
            events.phase(f"window-{precision}")
            found = _window(running, placed, began, contract, steps)
            own = None if window is None else fair.judged(window.errors(found))
            if own is None or window is None:
                window = make_reference(found, steps)
                losses = found.losses or _rotated(running, placed, began, done)
                window = replace(window, rotation=losses)
            else:
                window = with_errors(window, own)
            loss = done.losses[0] if precision == "fp64" else loss
            del found, placed, began
    assert three is not None and window is not None
    write_reference(folder, window_name(contract), window)
    write_reference(folder, reference_name(contract), three)
    if ahead is not None:
        events.phase("memory")
        ahead.wait()
    return Evidence("ok", "done", losses=(loss,), versions=versions)


def _ahead(job: Job, weights: Mapping[str, np.ndarray], step_s: float) -> Ahead | None:
    """Memory for the states that the timing processes will hand out, of large models: it is written while this one
    computes. ``step_s``: of fp64, which takes two to four times as long as what is timed."""
    if job.memory < 0 or job.cell.contract.region != "train-step" or not is_slow(step_s):
        return None
    one, wanted = sum(a.nbytes for a in weights.values()), states(step_s)
    there = held_already(job.memory)
    # As a timing process asks before it holds states (worker/handed.py), and the reference needs its own beside them.
    return Ahead(job.memory, states_bytes(one, wanted)) if can_hold(one, 2 * wanted + 1, there) else None


def _proved(step_s: float) -> int:
    return next(steps for limit, steps in _PROVED if step_s < limit)


def _rotated(running: Any, placed: list[Any], weights: Any, done: ThreeSteps) -> tuple[float, ...]:
    """The loss of each batch at the loaded weights, which the probe ``rotation`` asks of rows; of so many batches as
    take no time."""
    losses, start = [done.losses[0]], now()
    if done.seconds[2] > _ROTATED_S:
        return ()
    for batch in placed[1:]:
        running.load(weights)
        losses.append(running.loss(running.step(batch)))
        if now() - start > _ROTATED_S:
            break
    return tuple(losses)


def _same_loss(three: Reference, loss: float) -> bool:
    """Whether a first loss is the reference's but for rounding."""
    right, (_, size, err) = float(three.sketches["loss|1"][0]), three.entries["loss|1"]
    return abs(loss - right) <= 16 * err + 1e-3 * size


def _steps(
    maker: Maker, running: Any, placed: list[Any], region: str, events: Events
) -> tuple[ThreeSteps, dict[str, Any]]:
    if region != "train-step":
        return three_steps(running, placed, region, events), {}
    with maker.gradients(running, placed[0]) as found:
        done = three_steps(running, placed, region, events)
    return done, {"gradients": found} if found else {}


def _window(running: Any, placed: list[Any], weights: Any, contract: Contract, steps: int) -> Trace:
    """The state after ``steps`` steps from the weights, three of which are done, and the loss of the last of them; of a
    region without state what each batch gives, named ``NUMBER:NAME``, and their losses."""
    if contract.region == "train-step":
        loss = advance(running, placed, [i % len(placed) for i in range(3, steps)])
        return replace(state_trace(weights, running.state(), running.parameter_names()), losses=(loss,))
    running.load(weights)
    losses, found = [], {}
    for number, batch in enumerate(placed):
        handle = running.step(batch)
        losses.append(running.loss(handle))
        found |= {f"{number}:{n}": a for n, a in running.outputs(handle).items()}
    forward = contract.region == "forward"
    return Trace(tuple(losses), found if forward else {}, {} if forward else found, {}, {}, frozenset())
