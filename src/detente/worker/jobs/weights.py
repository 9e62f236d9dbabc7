"""Weights: a workload's weights and batches without a reference, of a model that is too large for one."""

from __future__ import annotations

from pathlib import Path

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.worker.events import Events
from detente.worker.maker import Maker, make_maker
from detente.worker.prepared import is_made, write_batches, write_kinks, write_weights
from detente.workloads.catalogue import find_size, find_workload


def run(job: Job, events: Events) -> Evidence:
    """Fill the prepared folder with what every row loads, unless it is there."""
    events.phase("import")
    maker = make_maker(job.cell.stack)
    events.phase("weights")
    make_weights(maker, job)
    return Evidence("ok", "done")


def make_weights(maker: Maker, job: Job) -> None:
    """Weights, batches and kinks in the job's folder, the weights last: they make the model exist."""
    folder, workload = Path(job.prepared), find_workload(job.cell.workload)
    if is_made(folder):
        return
    size = find_size(workload, job.cell.size)
    weights, batches, kinks = maker.first(job, workload, size, job.cell.contract)
    write_batches(folder, batches)
    write_kinks(folder, kinks)
    write_weights(folder, weights)
