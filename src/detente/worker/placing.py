"""Fresh batches onto the device, and what placing one takes beside one that had been placed before: a stack that
computes where it places would be fast ever after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detente.stacks.protocol import Running
from detente.worker.clock import readings

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Placing:
    """What placing took, in nanoseconds of the clock and of the processor: a fresh batch, one that was seen, and all of
    it."""

    fresh_ns: int = 0
    seen_ns: int = 0
    fresh_cpu_ns: int = 0
    seen_cpu_ns: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0


def place_fresh(running: Running, seen: Sequence[Batch], fresh: Sequence[Batch]) -> tuple[list[Any], Placing]:
    """The ``fresh`` batches on the device. With the collector off: one collection of all that a framework imports takes
    70 ms, and made a fair row void for computing in 32 placings of 30 us (28 November). And behind one placing that is
    not counted: where two batches were fresh, the first of them met cold caches, and torch-eager was void for 86 us
    beside 17."""
    start, start_cpu = readings()
    running.place(seen[0])
    begun, begun_cpu = readings()
    placed = [running.place(batch) for batch in fresh]
    between, between_cpu = readings()
    again = [running.place(seen[i % len(seen)]) for i in range(len(fresh))]
    over, over_cpu = readings()
    del again
    end, end_cpu = readings()
    count = len(fresh)
    return placed, Placing(
        (between - begun) // count,
        (over - between) // count,
        (between_cpu - begun_cpu) // count,
        (over_cpu - between_cpu) // count,
        end - start,
        end_cpu - start_cpu,
    )
