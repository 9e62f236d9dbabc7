"""What was declared of this row before it ran: the catalogue's recipe, the contract, its feed."""

from __future__ import annotations

from typing import Any

from detente.records.sample import Sample
from detente.stacks.catalogue import find_entry
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``declared``: the truth that findings are held against, and no finding itself."""
    contract = opened.job.cell.contract
    return {
        "declared": {
            "recipe": find_entry(opened.job.cell.stack).recipe,
            "contract": contract.name,
            "feed": contract.feed,
        }
    }
