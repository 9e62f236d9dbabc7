"""Which frameworks are loaded in this process."""

from __future__ import annotations

import sys
from typing import Any

from detente.records.sample import Sample
from detente.stacks.catalogue import find_entry
from detente.worker.opened import Opened

FRAMEWORKS = ("torch", "jax", "tensorflow", "torch_xla", "keras")


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``modules``. ``foreign`` are those that this stack's entry forbids; a torch DataLoader that feeds JAX with
    one thread is no second runtime and is not counted."""
    loaded = [f for f in FRAMEWORKS if f in sys.modules]
    forbidden = set(find_entry(opened.job.cell.stack).foreign)
    if opened.job.cell.contract.feed == "loader":
        forbidden.discard("torch")
    return {"modules": {"frameworks": loaded, "foreign": [f for f in loaded if f in forbidden]}}
