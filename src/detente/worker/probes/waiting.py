"""What waiting costs when there is nothing to wait for."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened

_ATTEMPTS = 20


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``waiting``. ``idle_s``: the fastest of some calls of ``synchronise`` on a step that is long finished and
    whose loss has been read; ``share``: the same over the shortest sampled block, each of which ends with one."""
    running = opened.running
    handle = running.step(opened.placed[0])
    running.synchronise(handle)
    running.loss(handle)
    taken = []
    for _ in range(_ATTEMPTS):
        start = perf_counter()
        running.synchronise(handle)
        taken.append(perf_counter() - start)
    shortest = min((s.wall_ns for s in samples), default=0) / 1e9
    return {
        "waiting": {"idle_s": min(taken), "share": min(taken) / shortest if shortest else None},
    }
