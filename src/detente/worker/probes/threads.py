"""Thread counts read back, and how many cores were really busy."""

from __future__ import annotations

import os
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``threads``. ``busy`` is process CPU time over wall time in the steady window."""
    wall, cpu = sum(s.wall_ns for s in samples), sum(s.cpu_ns for s in samples)
    return {
        "threads": {
            "asked": opened.job.threads,
            "affinity": len(os.sched_getaffinity(0)),
            "framework": opened.stack.threads(),
            "busy": round(cpu / wall, 3) if wall else None,
        }
    }
