"""Fits: what a row would hold on a chip that is not here, by compiling it for that chip. Nothing is loaded or run."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from detente.records.chip import find_chip
from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks.catalogue import find_entry, make_stack
from detente.stacks.installed_versions import installed_versions
from detente.stacks.protocol import Unavailable
from detente.worker.events import Events
from detente.workloads.catalogue import find_size, find_workload

_PLUGINS = {"tpu": ("libtpu",), "cuda": ("jax-cuda12-pjrt", "jax-cuda12-plugin")}


def run(job: Job, events: Events) -> Evidence:
    """``memory`` by ``FORM:LABEL``: ``arguments``, ``temporary``, ``peak`` (bytes) and ``ms`` (of the compiler) of each
    form of the row; a row that has one form only has the name ``""``."""
    events.phase("import")
    chip = find_chip(job.cell.device)
    if job.cell.arm:
        raise Unavailable("no stack is planned for a chip under an arm")
    stack: Any = make_stack(find_entry(job.cell.stack))
    stack.start("cpu", job.cell.contract.precision, job.threads)
    if not hasattr(stack, "plans_on"):
        raise Unavailable(f"{job.cell.stack} is compiled for no chip that is not here")
    workload = find_workload(job.cell.workload)
    size = find_size(workload, job.cell.size)
    batch = workload.batch(size, np.random.default_rng(job.seed + 1))
    events.phase("build")
    found: dict[str, int] = {}
    begun = time.monotonic()
    events.phase("first")
    for form, plan in stack.plans_on(chip, workload, size, job.cell.contract, batch):
        ended = time.monotonic()
        found |= {f"{form}:{label}": value for label, value in plan.items()}
        found[f"{form}:ms"] = int(1000 * (ended - begun))
        begun = ended
        events.phase("first")
    return Evidence(
        "ok", "done", memory=found, versions=stack.versions() | installed_versions(*_PLUGINS[chip.platform])
    )
