"""What the captured program computes, counted."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``program``, from the program before optimisation: what the stack was asked to compute. Absent for a stack
    that gives no program away."""
    return {} if opened.counted is None else {"program": opened.counted}
