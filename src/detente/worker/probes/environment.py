"""Environment variables that the worker started with, and those that importing the framework changed."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``environment``. Values that hold paths are named, not told: evidence travels to other people's machines."""
    return {
        "environment": {
            when: {k: "(path)" if "/" in v else v for k, v in variables.items()}
            for when, variables in opened.environment.items()
        }
    }
