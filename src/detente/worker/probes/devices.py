"""Where the outputs of a step really are."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``devices``."""
    return {"devices": {"outputs": list(opened.running.devices(opened.done)), "platform": opened.platform}}
