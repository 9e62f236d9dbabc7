"""Whether a step of this contract moves the parameters, as it must in training and must not elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``state``."""
    running = opened.running
    running.load(opened.weights)
    handle = running.step(opened.placed[0])
    running.synchronise(handle)
    # Where the clock is early the step may still be running: its parameters have not moved yet, and the next probe's
    # loading would meet it. That is a finding of its own (slope), not this one.
    running.loss(handle)
    names = running.parameter_names()
    after = running.tensors()
    moved = sum(not np.array_equal(after[n], opened.weights[n]) for n in names)
    return {"state": {"changed": moved > 0, "moved": moved, "parameters": len(names)}}
