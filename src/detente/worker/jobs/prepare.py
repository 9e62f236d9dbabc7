"""Prepare: weights, batches and the fp64 references of a contract, made once by torch-eager."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.contract import Contract
from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks.torch_eager import TorchEagerDefault, TorchRunning
from detente.worker.buffers import Ahead, held_already
from detente.worker.events import Events
from detente.worker.handed import can_hold, states_bytes
from detente.worker.prepared import map_batches, map_weights, write_batches, write_weights
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
from detente.worker.torch_reference import advance, in_orders, reference_run
from detente.worker.window import is_slow, states
from detente.workloads.catalogue import find_size, find_workload
from detente.workloads.workload import Size, Workload

# Steps that are proved from the loaded weights, the three timed ones among them, by the seconds of an fp64 step: as
# many as a model can afford, because what goes wrong on a schedule goes wrong late.
_PROVED = ((0.02, 35), (0.2, 19), (float("inf"), 8))


def run(job: Job, events: Events) -> Evidence:
    """Fill the prepared folder with whatever it lacks."""
    events.phase("import")
    folder, cell = Path(job.prepared), job.cell
    workload = find_workload(cell.workload)
    size = find_size(workload, cell.size)
    contract = cell.contract

    events.phase("weights")
    if not (folder / "weights.safetensors").exists():
        _write_weights(job, folder, workload, size, contract)

    weights, batches = map_weights(folder), map_batches(folder)
    three: Reference | None = None
    window: Reference | None = None
    versions: dict[str, str] = {}
    loss = float("nan")
    ahead: Ahead | None = None
    orders = list(in_orders(batches))
    for precision, order in [("fp64", 0), *((contract.precision, i) for i in range(len(orders)))]:
        events.phase(f"reference-{precision}")
        with reference_run(workload, size, contract, precision, cell.device, job.threads) as running:
            versions = running.stack.versions()
            running.load(weights)
            placed = [running.place(b) for b in orders[order]]
            done, gradients = _steps(running, placed, contract.region, events)
            if order == 0:
                trace = replace(done.trace(running, weights, contract.region, moved=True), **gradients)
                three = make_reference(trace) if three is None else with_errors(three, three.errors(trace))
                del trace
            elif not _same_loss(three, done.losses[0]):
                break  # another order of rows is another function here: one eager run has to do
            steps = window.steps if window is not None else _proved(done.seconds[2])
            ahead = ahead or _ahead(job, weights, done.seconds[2])
            events.phase(f"window-{precision}")
            found = _window(running, placed, weights, contract, steps)
            window = (
                make_reference(found, steps) if window is None else with_errors(window, window.errors(found))
            )
            loss = done.losses[0] if precision == "fp64" else loss
            del found, placed
    assert three is not None and window is not None
    write_reference(folder, window_name(contract), window)
    write_reference(folder, reference_name(contract), three)
    if ahead is not None:
        events.phase("memory")
        ahead.wait()
    return Evidence("ok", "done", losses=(loss,), versions=versions)


def _write_weights(job: Job, folder: Path, workload: Workload, size: Size, contract: Contract) -> None:
    stack = TorchEagerDefault()
    stack.start("cpu", "fp32", job.threads)
    stack.torch.manual_seed(job.seed)
    plain = replace(contract, precision="fp32", region="gradient", optimizer=None)
    running = stack.build(workload, size, plain)
    batches = [workload.batch(size, np.random.default_rng(job.seed + 1 + i)) for i in range(job.batches)]
    write_batches(folder, batches)
    write_weights(folder, running.tensors())
    del running
    gc.collect()


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


def _same_loss(three: Reference | None, loss: float) -> bool:
    """Whether a first loss is the reference's but for rounding."""
    assert three is not None
    right, (_, size, err) = float(three.sketches["loss|1"][0]), three.entries["loss|1"]
    return abs(loss - right) <= 16 * err + 1e-3 * size


def _steps(
    running: TorchRunning, placed: list[Any], region: str, events: Events
) -> tuple[ThreeSteps, dict[str, Any]]:
    gradients: dict[str, np.ndarray] = {}
    hook = None
    if region == "train-step":
        # Those of the first step itself, before its update: a backward pass of their own would cost a fourth step.
        hook = running.optimizer.register_step_pre_hook(
            lambda *_: gradients.update(gradients or running.held_gradients())
        )
    done = three_steps(running, placed, region, events)
    if hook is not None:
        hook.remove()
    return done, {"gradients": gradients} if gradients else {}


def _window(running: TorchRunning, placed: list[Any], weights: Any, contract: Contract, steps: int) -> Trace:
    """The state after ``steps`` steps from the weights, three of which are done; of a region without state what each
    batch gives, named ``NUMBER:NAME``."""
    if contract.region == "train-step":
        advance(running, placed, [i % len(placed) for i in range(3, steps)])
        return state_trace(weights, running.state(), running.parameter_names())
    running.load(weights)
    losses, found = [], {}
    for number, batch in enumerate(placed):
        handle = running.step(batch)
        losses.append(running.loss(handle))
        found |= {f"{number}:{n}": a for n, a in running.outputs(handle).items()}
    forward = contract.region == "forward"
    return Trace(tuple(losses), found if forward else {}, {} if forward else found, {}, {}, frozenset())
