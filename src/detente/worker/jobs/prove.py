"""Prove: three steps and every gradient against the reference, untimed. At size tiny in fp64 this is level one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.worker.events import Events
from detente.worker.layers.of_pair import differing
from detente.worker.opened import open_job
from detente.worker.prepared import read_kinks
from detente.worker.reference import GRADIENTS, RETURNED, TENSORS, map_reference, reference_name
from detente.worker.three_steps import three_steps


def run(job: Job, events: Events) -> Evidence:
    """The errors of everything the reference holds."""
    opened = open_job(job, events)
    running, region = opened.running, job.cell.contract.region
    steps = three_steps(running, opened.placed, region, events)
    trace = steps.trace(running, opened.weights, region, moved=True)
    whole = RETURNED[region]
    if region == "train-step":
        events.phase("proof")
        running.load(opened.weights)
        trace, whole = replace(trace, gradients=running.gradients(opened.placed[0])), GRADIENTS
    folder = Path(job.prepared)
    errors = map_reference(folder, reference_name(job.cell.contract)).errors(trace, whole | TENSORS)
    layer = ""
    if job.cell.contract.precision == "fp64":
        events.phase("layers")
        layer = differing(running, opened.size, folder, opened.placed[0], opened.weights, errors)
    return Evidence(
        "ok",
        "done",
        losses=trace.losses,
        errors=errors,
        versions=opened.stack.versions(),
        kinks=read_kinks(folder),
        probes={"layer": layer} if layer else {},
    )
