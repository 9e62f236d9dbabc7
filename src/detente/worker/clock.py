"""The clock. It has no ``if``: every stack is started, waited for and read in the same way.

Its readings are bound when this module is imported, before any file of a user's is: a stack that patches ``time``
afterwards patches something that nobody asks. (One that patches detente itself, or the interpreter, is out of scope;
docs/rules/README.md says so.) The parent holds the whole window against a clock of its own.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns, process_time_ns
from typing import Any

from detente.records.job import Sampling
from detente.records.sample import Sample
from detente.stacks.protocol import Running


def now() -> float:
    """Seconds, of the clock that the samples are read from."""
    return perf_counter_ns() * 1e-9


def readings() -> tuple[int, int]:
    """(wall, processor time of this process), nanoseconds."""
    return perf_counter_ns(), process_time_ns()


def timed_step(running: Running, batch: Any) -> tuple[float, float, Any]:
    """Seconds of one step from start until its loss is on the host; the loss; the handle."""
    start = now()
    handle = running.step(batch)
    loss = running.loss(handle)
    running.synchronise(handle)
    return now() - start, loss, handle


# A step whose loss is read back takes at most this many times as long as one of a queue (waking threads, the read).
_READ_FACTOR = 32
# Room for jitter: a block is made so many times as long as it must be.
ROOM = 1.25


def calibrate(running: Running, next_batch: Callable[[], Any], step_s: float, sampling: Sampling) -> int:
    """Steps to queue between two readings, so that a block lasts at least ``block_s``; ``step_s`` is a first guess.

    A first guess from single steps is too long for small programs (it pays for waking the threads and for the
    read), so the number grows until a whole block says that it is long enough; 1.25 leaves room for jitter. Where a
    single step is as long as that already, nothing is run.

    A stack that does not wait says so of no block: there the loss that is read afterwards tells how long the work
    was, and growth ends, or a process of seconds takes ten minutes. Where the clock is right that read finds a
    finished scalar.
    """
    if is_long(step_s, sampling):
        return 1
    steps = max(1, math.ceil(ROOM * sampling.block_s / max(step_s, 1e-6)))
    most = _READ_FACTOR * steps
    while True:
        start = now()
        taken, last = sample(running, next_batch, steps)
        running.loss(last)
        whole_s, wall_s = now() - start, taken.wall_ns / 1e9
        if wall_s >= 1.1 * sampling.block_s or whole_s >= 2 * sampling.block_s or steps >= most:
            return steps
        grown = math.ceil(steps * ROOM * sampling.block_s / max(wall_s, 1e-6))
        steps = min(most, max(steps + 1, grown))


def is_long(step_s: float, sampling: Sampling) -> bool:
    """Whether one step, as it was measured with its loss read, makes a block by itself, with room to spare."""
    return step_s >= 4 * sampling.block_s


def sample(running: Running, next_batch: Callable[[], Any], steps: int, keep: int = -1) -> tuple[Sample, Any]:
    """Queue ``steps`` steps, wait for all of them, let go of all handles but one, read the clock. Also returns the
    handle of step ``keep``. Nothing of the stack's runs outside the two readings: letting go is the step's too, as in a
    loop that rebinds its loss (of steps of 20 microseconds it is a twentieth)."""
    wall, cpu = perf_counter_ns(), process_time_ns()
    handles = [running.step(next_batch()) for _ in range(steps)]
    running.synchronise(*handles)
    kept = handles[keep]
    del handles
    wall, cpu = perf_counter_ns() - wall, process_time_ns() - cpu
    return Sample(wall, steps, cpu), kept


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


def timer_cost_ns(repeats: int = 2000) -> float:
    """Nanoseconds that one reading of both clocks costs, median-free mean over ``repeats``."""
    start = perf_counter_ns()
    for _ in range(repeats):
        process_time_ns()
        perf_counter_ns()
    return (perf_counter_ns() - start) / repeats
