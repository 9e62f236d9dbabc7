"""Check: everything that the bridge would refuse in a model, found in one pass. Compiles nothing."""

from __future__ import annotations

import importlib

import numpy as np

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks.installed_versions import installed_versions
from detente.stacks.torch_eager import optimizer_for
from detente.worker.events import Events
from detente.workloads.catalogue import find_size, find_workload


def run(job: Job, events: Events) -> Evidence:
    """The reasons as text, under the probe key ``reasons``."""
    events.phase("import")
    import torch

    from detente.bridge.doors.entry import check

    events.phase("build")
    workload = find_workload(job.cell.workload)
    size = find_size(workload, job.cell.size)
    definition = importlib.import_module(workload.definitions["torch"])
    torch.manual_seed(job.seed)
    module = definition.build(size)
    arrays = workload.batch(size, np.random.default_rng(job.seed))
    batch = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    optimizer = optimizer_for(definition, job.cell.contract, module, workload.optimizer)

    events.phase("capture")
    reasons = check(module, definition.loss, batch, optimizer)
    return Evidence(
        "ok",
        "done",
        versions=installed_versions("torch", "jax", "transformers"),
        probes={
            "reasons": [
                {"code": r.code, "what": r.what, "where": str(r.where or ""), "text": str(r)} for r in reasons
            ]
        },
    )
