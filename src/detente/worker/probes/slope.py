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

    def queued(n: int) -> list[Any]:
        return [running.step(b) for b, _ in zip(cycle(opened.placed), range(n), strict=False)]

    def waited(handles: list[Any]) -> None:
        running.synchronise(*handles)

    def read(handles: list[Any]) -> None:
        # All steps are queued before the first is read: a read between steps would add the host's own latency to
        # each, which is no sign of an early clock.
        for handle in handles:
            running.loss(handle)

    def seconds(n: int, end: Callable[[list[Any]], None]) -> float:
        start = time.perf_counter()
        handles = queued(n)
        end(handles)
        taken = time.perf_counter() - start
        # Whatever is still in flight is finished outside the clock, so that it is not charged to the next reading.
        read(handles[-1:])
        return taken

    read(queued(1))
    # The samples cannot say how many steps make a reading: where the clock is early, they say nothing.
    single = seconds(1, read)
    k = max(1, min(64, int(0.1 / max(single, 1e-6))))
    # A step that takes long averages its own noise, and three rounds of it would cost more than the samples did.
    rounds = 3 if single < 0.5 else 2
    waits, doubles = [], []
    reads = [single] if k == 1 else []  # of one step the guess is a reading already
    # In turn, so that a machine that is busy for a while is busy for all three.
    for i in range(rounds):
        waits.append(seconds(k, waited))
        if len(reads) < rounds:
            reads.append(seconds(k, read))
        if i < rounds - 1:
            doubles.append(seconds(2 * k, waited))
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
