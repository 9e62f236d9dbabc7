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
    running, first, later = opened.running, opened.first_loss, opened.later_loss
    if first is None or later is None:
        raise RuntimeError(
            "no step was taken from the prepared weights that the first one could be held against"
        )

    def loss(batch: Any) -> float:
        running.load(opened.weights)
        return running.loss(running.step(batch))

    # All behind the window: a program that goes on with the batch that it met last differs from a first step.
    losses, start = [later], now()
    for batch in opened.placed[1:]:
        losses.append(loss(batch))
        if now() - start > 1.0:
            break
    size = max(abs(first), 1e-30)
    return {
        "rotation": {"losses": losses},
        "repeat": {"max_rel": abs(later - first) / size},
    }
