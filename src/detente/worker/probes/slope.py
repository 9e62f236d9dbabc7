"""Whether the clock stops after the work: twice the steps take twice as long, and reading changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``slope``: seconds of k steps, of 2k steps, and of k steps whose outputs are all read on the host. The first
    two end with the stack's own ``synchronise``; the third forces the work whatever that does. ``t_k``,
    ``t_2k`` and ``read_t_k`` are the best of ``waits``, ``doubles`` and ``reads``."""
    running = opened.running
    step_s = min(s.wall_ns / s.steps for s in samples) / 1e9
    k = max(1, min(64, int(0.1 / max(step_s, 1e-6))))

    def waited(n: int) -> Callable[[], None]:
        return lambda: running.synchronise(
            *[running.step(b) for b, _ in zip(cycle(opened.placed), range(n), strict=False)]
        )

    def read() -> None:
        # All steps are queued before the first is read: a read between steps would add the host's own latency to
        # each, which is no sign of an early clock.
        for handle in [running.step(b) for b, _ in zip(cycle(opened.placed), range(k), strict=False)]:
            running.loss(handle)

    def drained() -> None:
        # Whatever is still in flight is finished outside the clock, so that it is not charged to the next reading.
        handle = running.step(opened.placed[0])
        running.loss(handle)
        running.outputs(handle)

    def seconds(work: Callable[[], None]) -> float:
        drained()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    # In turn, so that a machine that is busy for a while is busy for all three.
    waits, doubles, reads = [], [], []
    for _ in range(3):
        waits.append(seconds(waited(k)))
        reads.append(seconds(read))
        if len(doubles) < 2:
            doubles.append(seconds(waited(2 * k)))
    drained()
    return {
        "slope": {
            "k": k,
            "t_k": min(waits),
            "t_2k": min(doubles),
            "read_t_k": min(reads),
            "waits": waits,
            "doubles": doubles,
            "reads": reads,
        }
    }
