"""What the stack says of how it runs the region."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``facts``; see ``Running.facts``."""
    return {"facts": opened.running.facts()}
