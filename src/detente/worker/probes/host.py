"""State of the harness while it measured."""

from __future__ import annotations

import sys
from typing import Any

from detente.records.sample import Sample
from detente.worker.clock import timer_cost_ns
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``host``. ``timer_share`` is the clock's own cost over the shortest sampled block."""
    shortest = min((s.wall_ns for s in samples), default=0)
    cost = timer_cost_ns()
    return {
        "host": {
            "gc_disabled": True,  # worker/clock.py turns it off for the window and on again after it
            "profiler_active": sys.getprofile() is not None or sys.gettrace() is not None,
            "timer_ns": round(cost, 1),
            "shortest_block_ns": shortest,
            "timer_share": cost / shortest if shortest else None,
        }
    }
