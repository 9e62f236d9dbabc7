"""Probe: what a stack can do here, without a workload. ``detente doctor`` uses it."""

from __future__ import annotations

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks.catalogue import find_entry, make_stack
from detente.worker.clock import now
from detente.worker.events import Events
from detente.worker.probes.precision import product_class


def run(job: Job, events: Events) -> Evidence:
    """Import, device, a synchronised product, its effective precision."""
    events.phase("import")
    begun = now()
    stack = make_stack(find_entry(job.cell.stack))
    platform = stack.start(job.cell.device, job.cell.contract.precision, job.threads)
    import_s = now() - begun
    events.phase("product")
    return Evidence(
        "ok",
        "done",
        import_s=import_s,
        versions=stack.versions(),
        probes={
            "precision": product_class(stack),
            "threads": stack.threads(),
            "platform": platform,
            "product_s": stack.product_seconds(512, 512, 512, 3),
        },
    )
