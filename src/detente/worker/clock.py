"""The clock. It has no ``if``: every stack is started, waited for and read in the same way."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from detente.records.job import Sampling
from detente.records.sample import Sample
from detente.stacks.protocol import Running


def timed_step(running: Running, batch: Any) -> tuple[float, float, Any]:
    """Seconds of one step from start until its loss is on the host; the loss; the handle."""
    start = time.perf_counter()
    handle = running.step(batch)
    loss = running.loss(handle)
    running.synchronise(handle)
    return time.perf_counter() - start, loss, handle


# A step whose loss is read back takes at most this many times as long as one of a queue (waking threads, the read).
_READ_FACTOR = 32


def calibrate(running: Running, next_batch: Callable[[], Any], step_s: float, sampling: Sampling) -> int:
    """Steps to queue between two readings, so that a block lasts at least ``block_s``; ``step_s`` is a first guess.

    A first guess from single steps is too long for small programs (it pays for waking the threads and for the
    read), so the number grows until a whole block says that it is long enough; 1.25 leaves room for jitter.

    A stack that does not wait says so of no block: there the loss that is read afterwards tells how long the work
    was, and growth ends, or a process of seconds takes ten minutes. Where the clock is right that read finds a
    finished scalar.
    """
    steps = max(1, math.ceil(1.25 * sampling.block_s / max(step_s, 1e-6)))
    most = _READ_FACTOR * steps
    while True:
        start = time.perf_counter()
        taken, last = sample(running, next_batch, steps)
        running.loss(last)
        whole_s, wall_s = time.perf_counter() - start, taken.wall_ns / 1e9
        if wall_s >= 1.1 * sampling.block_s or whole_s >= 2 * sampling.block_s or steps >= most:
            return steps
        grown = math.ceil(steps * 1.25 * sampling.block_s / max(wall_s, 1e-6))
        steps = min(most, max(steps + 1, grown))


def sample(running: Running, next_batch: Callable[[], Any], steps: int) -> tuple[Sample, Any]:
    """Queue ``steps`` steps, wait for all of them, read the clock. Also returns the last handle, for consumption."""
    events = running.compiled().events
    cpu, start = time.process_time_ns(), time.perf_counter_ns()
    handles = [running.step(next_batch()) for _ in range(steps)]
    running.synchronise(*handles)
    wall, cpu = time.perf_counter_ns() - start, time.process_time_ns() - cpu
    return Sample(wall, steps, cpu, running.compiled().events - events), handles[-1]


@contextmanager
def without_collector() -> Iterator[None]:
    """The garbage collector is off meanwhile: a collection is the harness's work, not the step's."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def steady(
    running: Running, next_batch: Callable[[], Any], steps: int, sampling: Sampling
) -> Iterator[Sample]:
    """Samples of the steady state until the sampling rule is met. ``calibrate`` has run blocks of the same length
    before, so nothing here is a first time.
    """
    with without_collector():
        begun = time.perf_counter()
        taken = 0
        while taken < sampling.samples and (
            taken < sampling.least or time.perf_counter() - begun < sampling.seconds
        ):
            yield sample(running, next_batch, steps)[0]
            taken += 1


def timer_cost_ns(repeats: int = 2000) -> float:
    """Nanoseconds that one reading of both clocks costs, median-free mean over ``repeats``."""
    start = time.perf_counter_ns()
    for _ in range(repeats):
        time.process_time_ns()
        time.perf_counter_ns()
    return (time.perf_counter_ns() - start) / repeats
