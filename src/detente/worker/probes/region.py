"""What is inside the clock, as this worker ran it: the contract's parts, and transfers that the contract keeps out."""

from __future__ import annotations

from typing import Any

import numpy as np

from detente.records.sample import Sample
from detente.stacks.catalogue import find_entry
from detente.worker.opened import Opened

_INSIDE = {
    "forward": ["forward", "loss"],
    "gradient": ["forward", "loss", "backward"],
    "train-step": ["forward", "loss", "backward", "optimizer"],
}


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``region``. A placed batch that is still numpy means that the step places it, inside the clock; a handle that
    holds numpy or Python numbers means that the step reads its outputs back, inside the clock."""
    contract = opened.job.cell.contract
    inside = list(_INSIDE[contract.region])
    inside += (
        ["fetch", "place"] if contract.feed == "loader" else (["place"] if _on_host(opened.placed[0]) else [])
    )
    inside += ["read"] if _on_host(opened.done) else []
    return {
        "region": {
            "contract": contract.name,
            "recipe": find_entry(opened.job.cell.stack).recipe,
            "inside": inside,
            "feed": contract.feed,
        }
    }


def _on_host(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_on_host(v) for v in value.values())
    if isinstance(value, list | tuple):
        return any(_on_host(v) for v in value)
    return isinstance(value, np.ndarray | np.generic | float | int)
