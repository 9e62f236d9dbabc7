"""Prepare: weights, batches and the fp64 reference of a contract, made once by torch-eager."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks.torch_eager import TorchEager, TorchRunning
from detente.stacks.torch_undrawn import undrawn
from detente.worker.events import Events
from detente.worker.prepared import map_batches, map_weights, write_batches, write_weights
from detente.worker.reference import Reference, Trace, make_reference, with_errors, write_reference
from detente.worker.three_steps import three_steps
from detente.workloads.catalogue import find_size, find_workload


def run(job: Job, events: Events) -> Evidence:
    """Fill the prepared folder with whatever it lacks."""
    events.phase("import")
    folder, cell = Path(job.prepared), job.cell
    workload = find_workload(cell.workload)
    size = find_size(workload, cell.size)
    contract = cell.contract

    events.phase("weights")
    if not (folder / "weights.safetensors").exists():
        stack = TorchEager()
        stack.start("cpu", "fp32", job.threads)
        stack.torch.manual_seed(job.seed)
        running = stack.build(
            workload, size, replace(contract, precision="fp32", region="gradient", optimizer=None)
        )
        batches = [workload.batch(size, np.random.default_rng(job.seed + 1 + i)) for i in range(job.batches)]
        write_batches(folder, batches)
        write_weights(folder, running.tensors())
        del running
        gc.collect()

    events.phase("reference-fp64")
    versions: dict[str, str] = {}
    reference: Reference | None = None
    for precision in ("fp64", contract.precision):
        events.phase(f"reference-{precision}")
        stack = TorchEager()
        stack.start(cell.device, precision, job.threads)
        versions = stack.versions()
        with undrawn():  # ``load`` overwrites what would be drawn, and in float64 drawing takes seconds
            running = stack.build(workload, size, contract.at(precision))
        trace = _trace(running, folder, contract.region, events)
        reference = (
            make_reference(trace) if reference is None else with_errors(reference, reference.errors(trace))
        )
        # The fp64 run holds the model four times over; it must be gone before the next one is built.
        del running, trace
        gc.collect()
    assert reference is not None
    write_reference(folder, contract, reference)
    loss = float(reference.sketches["loss|1"][0])
    return Evidence("ok", "done", losses=(loss,), versions=versions)


def _trace(running: TorchRunning, folder: Path, region: str, events: Events) -> Trace:
    weights = map_weights(folder)
    running.load(weights)
    placed = [running.place(b) for b in map_batches(folder)]
    gradients: dict[str, np.ndarray] = {}
    if region == "train-step":
        # Those of the first step itself, before its update: a backward pass of their own would cost a fourth step.
        running.optimizer.register_step_pre_hook(
            lambda *_: gradients.update(gradients or running.held_gradients())
        )
    trace = three_steps(running, placed, weights, region, events).trace
    return replace(trace, gradients=gradients) if gradients else trace
