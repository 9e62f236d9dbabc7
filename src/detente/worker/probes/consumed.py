"""The outputs of a step are there to be read: real numbers on the host after the window."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from detente.records.sample import Sample
from detente.records.tensor_error import NOT_FINITE
from detente.worker.opened import Opened
from detente.worker.reference import RETURNED, has_reference, map_reference, window_name


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``consumed``. ``finite``: the loss is a number, and so is all of every output, but for the ``unbounded``:
    what holds infinities or NaN in the reference of some batch may hold them here (where, the proof of the window
    says). ``owed``: whether there is anything to return besides the loss; a user's own loss may be all that there is,
    and the reference, which knows, has none then."""
    loss = opened.running.loss(opened.done)
    outputs = opened.running.outputs(opened.done)
    strange = sorted(name for name, array in outputs.items() if not np.isfinite(array).all())
    allowed = _unbounded(opened) if strange else frozenset()
    finite = math.isfinite(loss) and allowed.issuperset(strange)
    return {
        "consumed": {
            "outputs": sorted(outputs),
            "owed": _owed(opened),
            "finite": finite,
            "unbounded": [name for name in strange if name in allowed],
            "loss": loss,
        }
    }


def _owed(opened: Opened) -> bool:
    folder, contract = Path(opened.job.prepared), opened.job.cell.contract
    if not has_reference(folder, contract):
        return True
    kept = map_reference(folder, window_name(contract)).entries
    return any(key.partition("|")[0] in RETURNED[contract.region] for key in kept)


def _unbounded(opened: Opened) -> frozenset[str]:
    """Outputs that are no numbers in the reference either."""
    folder, contract = Path(opened.job.prepared), opened.job.cell.contract
    if not has_reference(folder, contract):
        return frozenset()
    kept = map_reference(folder, window_name(contract)).entries
    # ``output|2:logits (not finite)`` is of the third batch.
    told = (key.removeprefix("output|").removesuffix(NOT_FINITE) for key in kept if key.endswith(NOT_FINITE))
    return frozenset(name.partition(":")[2] for name in told)
