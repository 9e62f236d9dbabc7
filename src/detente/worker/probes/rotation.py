"""The loss of each rotated batch from the same weights, and the same step twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.sample import Sample
from detente.worker.clock import now
from detente.worker.opened import Opened
from detente.worker.reference import has_reference, map_reference, window_name

# Steps on the first batch, behind which batches of one loss are asked again. More than one: a warm-up's first learning
# rate is 0.
_FURTHER = (1, 3, 8)


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Keys ``rotation`` and ``repeat``: different batches must give different losses, and the first batch, run again
    from the same state behind the window (by the probe ``region``), the same one as in the first step. Two batches
    where a loading and a step take over a second: two are enough to differ, and all of them took as long as the
    samples.

    Where two losses are the same, what could tell their batches all the same is asked too: ``reference`` has the losses
    of the reference (a head that begins as zeros has one loss for every batch), ``further`` those of this row behind
    steps on the first batch, and ``returned``, of a region without state, a digest of what a step on each returned.
    """
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
    found: dict[str, Any] = {"losses": losses}
    if _alike(losses):
        found["reference"] = _reference(opened)[: len(losses)]
        if opened.job.cell.contract.region == "train-step":
            found["further"] = list(_further(opened, len(losses)))
        else:
            found["returned"] = [_returned(opened, batch) for batch in opened.placed[: len(losses)]]
    return {"rotation": found, "repeat": {"max_rel": abs(later - first) / size}}


def _alike(losses: list[float]) -> bool:
    # As text: two that are no numbers are the same.
    return len({repr(loss) for loss in losses}) < len(losses)


def _reference(opened: Opened) -> list[float]:
    folder, contract = Path(opened.job.prepared), opened.job.cell.contract
    if not has_reference(folder, contract):
        return []
    return list(map_reference(folder, window_name(contract)).rotation)


def _further(opened: Opened, count: int) -> Iterator[list[float]]:
    """The losses of so many batches, each behind the same steps on the first one; until all differ."""
    running = opened.running
    for steps in _FURTHER:
        losses = []
        for batch in opened.placed[:count]:
            running.load(opened.weights)
            for _ in range(steps):
                running.step(opened.placed[0])
            losses.append(running.loss(running.step(batch)))
        yield losses
        if not _alike(losses):
            return


def _returned(opened: Opened, batch: Any) -> str:
    running = opened.running
    running.load(opened.weights)
    digest = hashlib.sha256()
    for name, array in sorted(running.outputs(running.step(batch)).items()):
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
