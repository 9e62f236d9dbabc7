"""Kernels: the bridge's extension is there, and what it may take over from XLA is measured, before a step asks."""

from __future__ import annotations

import os

from detente.records.evidence import Evidence
from detente.records.job import Job
from detente.stacks.installed_versions import installed_versions
from detente.worker.events import Events


def run(job: Job, events: Events) -> Evidence:
    """What is called and why, under the probe key ``kernels``. ``job.options["again"]``: as if nothing were remembered;
    ``kernels``: the user's own ``DETENTE_KERNELS`` (None: not set), because it is found out for their programs."""
    if (told := job.options.get("kernels")) is not None:
        os.environ["DETENTE_KERNELS"] = str(told)
    events.phase("import")
    from detente.bridge.kernels.ahead import prepared

    found = prepared(lambda what: events.phase("first", what=what), again=bool(job.options.get("again")))
    return Evidence("ok", "done", versions=installed_versions("torch", "jax"), probes={"kernels": found})
