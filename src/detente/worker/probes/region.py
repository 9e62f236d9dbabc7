"""What the contract puts inside the clock, as this worker ran it."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.stacks.catalogue import find_entry
from detente.worker.opened import Opened

_INSIDE = {
    "forward": ["forward", "loss"],
    "gradient": ["forward", "loss", "backward"],
    "train-step": ["forward", "loss", "backward", "optimizer"],
}


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``region``."""
    contract = opened.job.cell.contract
    inside = list(_INSIDE[contract.region]) + (["fetch", "place"] if contract.feed == "loader" else [])
    return {
        "region": {
            "contract": contract.name,
            "recipe": find_entry(opened.job.cell.stack).recipe,
            "inside": inside,
            "feed": contract.feed,
        }
    }
