"""The loss of each rotated batch from the same weights, and the same step twice."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.worker.clock import now
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Keys ``rotation`` and ``repeat``: different batches must give different losses, and the first batch, run again
    from the same state behind the window (by the probe ``region``), the same one as in the first step. Two batches
    where a loading and a step take over a second: two are enough to differ, and all of them took as long as the
    samples."""
    running = opened.running

    def loss(batch: Any) -> float:
        running.load(opened.weights)
        return running.loss(running.step(batch))

    losses, start = [opened.first_loss], now()
    for batch in opened.placed[1:]:
        losses.append(loss(batch))
        if now() - start > 1.0:
            break
    size = max(abs(losses[0]), 1e-30)
    return {
        "rotation": {"losses": losses},
        "repeat": {"max_rel": abs(opened.later_loss - losses[0]) / size},
    }
