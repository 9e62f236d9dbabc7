"""A sample: one reading of the clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """``steps`` steps queued, one synchronise, ``wall_ns`` nanoseconds. Never deleted, never trimmed.

    cpu_ns          CPU time of the whole process over the same window (user + system)
    compile_events  compilations, traces and captures that the stack counted inside the window
    """

    wall_ns: int
    steps: int = 1
    cpu_ns: int = 0
    compile_events: int = 0


def process_median(samples: Iterable[Sample]) -> float | None:
    """Seconds per step of one process: the median over its samples, none of them dropped; None without samples.

    >>> process_median([Sample(3_000_000, 3), Sample(9_000_000, 3), Sample(6_000_000, 3)])
    0.002
    """
    seconds = [s.wall_ns / s.steps for s in samples]
    return statistics.median(seconds) * 1e-9 if seconds else None
