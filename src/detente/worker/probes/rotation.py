"""The loss of each rotated batch from the same weights, and the same step twice."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Keys ``rotation`` and ``repeat``: different batches must give different losses, and the first batch, run again
    from the same state, the same one."""
    running = opened.running
    losses = []
    for batch in (*opened.placed, opened.placed[0]):
        running.load(opened.weights)
        losses.append(running.loss(running.step(batch)))
    again = losses.pop()
    size = max(abs(losses[0]), 1e-30)
    return {"rotation": {"losses": losses}, "repeat": {"max_rel": abs(again - losses[0]) / size}}
