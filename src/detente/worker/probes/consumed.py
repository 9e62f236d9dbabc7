"""The outputs of a step are there to be read: real numbers on the host after the window."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``consumed``."""
    loss = opened.running.loss(opened.done)
    outputs = opened.running.outputs(opened.done)
    finite = math.isfinite(loss) and all(bool(np.isfinite(a).all()) for a in outputs.values())
    return {"consumed": {"outputs": sorted(outputs), "finite": finite, "loss": loss}}
