"""What waiting costs when there is nothing to wait for."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.worker.clock import readings
from detente.worker.opened import Opened

_ATTEMPTS = 20


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``waiting``. ``idle_s``: the fastest of some calls of ``synchronise`` on a step that is long finished and
    whose loss has been read; ``share``: the same over the shortest sampled block, each of which ends with one;
    ``asleep``: the share of the block in which such a call used no processor. Asking a few hundred arrays whether they
    are ready takes JAX 0.2 ms of Python, all of it computed; a sleep computes nothing."""
    running, handle = opened.running, opened.done
    running.synchronise(handle)
    running.loss(handle)
    taken, asleep = [], []
    for _ in range(_ATTEMPTS):
        wall, cpu = readings()
        running.synchronise(handle)
        wall_now, cpu_now = readings()
        taken.append((wall_now - wall) / 1e9)
        asleep.append(max(0, (wall_now - wall) - (cpu_now - cpu)) / 1e9)
    shortest = min((s.wall_ns for s in samples), default=0) / 1e9
    return {
        "waiting": {
            "idle_s": min(taken),
            "share": min(taken) / shortest if shortest else None,
            "asleep": min(asleep) / shortest if shortest else None,
        },
    }
