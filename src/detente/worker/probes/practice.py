"""Which of its framework's documented practices the row follows: display, and no evidence."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``practice``: what the stack says of its own objects. No rule reads it."""
    return {"practice": {"said": opened.running.practice()[:300]}}
