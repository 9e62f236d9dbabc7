"""State of the harness while it measured."""

from __future__ import annotations

import sys
from typing import Any

from detente.records.sample import Sample
from detente.worker.clock import timer_cost_ns
from detente.worker.opened import Opened
from detente.worker.process_state import patched_timers


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``host``.

    ``collector``    whether Python's collector was on at the end of the window, which began with it off: the harness
                     turns it off, a stack may turn it on again
    ``patched_timers``  functions of ``time`` that somebody replaced after the worker began
    ``timer_share``  the clock's own cost over the shortest sampled block
    """
    shortest = min((s.wall_ns for s in samples), default=0)
    cost = timer_cost_ns()
    return {
        "host": {
            "collector": opened.collector,
            "patched_timers": patched_timers(),
            "profiler_active": _profiled(),
            "timer_ns": round(cost, 1),
            "shortest_block_ns": shortest,
            "timer_share": cost / shortest if shortest else None,
        }
    }


def _profiled() -> bool:
    """Python's own hooks, and torch's profiler where torch is loaded."""
    autograd = getattr(sys.modules.get("torch"), "autograd", None)
    enabled = getattr(autograd, "_profiler_enabled", lambda: False)
    return sys.getprofile() is not None or sys.gettrace() is not None or bool(enabled())
