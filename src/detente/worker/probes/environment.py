"""Environment variables that the worker started with, and those that importing the framework changed."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``environment``."""
    return {"environment": opened.environment}
