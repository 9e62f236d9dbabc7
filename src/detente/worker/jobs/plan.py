"""Plan: what a row would hold, before it runs. Nothing is loaded, and of most stacks nothing is made."""

from __future__ import annotations

import sys

import numpy as np

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks.catalogue import find_entry, make_stack
from detente.stacks.process_memory import resident_beside
from detente.stacks.protocol import Unavailable
from detente.stacks.xla_memory import live_bytes
from detente.worker.events import Events
from detente.workloads.catalogue import find_size, find_workload


def run(job: Job, events: Events) -> Evidence:
    """``planned_*`` by label, and ``planned_process``: the peak beside what the process holds without its tensors,
    which is what this one holds: interpreter, libraries, what a compiler leaves behind."""
    events.phase("import")
    if job.cell.arm:
        raise Unavailable("no stack plans itself under an arm")
    stack = make_stack(find_entry(job.cell.stack))
    platform = stack.start(job.cell.device, job.cell.contract.precision, job.threads)
    workload = find_workload(job.cell.workload)
    size = find_size(workload, job.cell.size)
    batch = workload.batch(size, np.random.default_rng(job.seed + 1))
    events.phase("build")
    if not hasattr(stack, "plan"):
        raise Unavailable(f"{job.cell.stack} plans no memory")
    found = stack.plan(workload, size, job.cell.contract, batch)
    if not found:
        raise Unavailable(f"{job.cell.stack} plans no memory here")
    if platform == "cpu":
        if "planned_base" not in found:
            # A stack that makes its state to plan it holds it now.
            found["planned_base"] = resident_beside(live_bytes(jax) if (jax := sys.modules.get("jax")) else 0)
        parts = ("planned_peak", "planned_kept", "planned_base", "planned_compiler")
        found["planned_process"] = sum(found.get(part, 0) for part in parts)
    return Evidence("ok", "done", memory=found, versions=stack.versions())
