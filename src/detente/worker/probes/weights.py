"""The weights that the stack holds, read back and hashed against the prepared file."""

from __future__ import annotations

from typing import Any

import numpy as np

from detente.records.sample import Sample
from detente.worker.opened import Opened
from detente.worker.reference import split_state
from detente.workloads.narrow import is_narrow
from detente.workloads.weights import canonical_hash


def _equal(held: np.ndarray, want: np.ndarray) -> bool:
    return held.dtype == want.dtype and np.array_equal(held, want)


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``weights``. ``differing`` names the first canonical tensor that did not come back bit for bit;
    ``count`` and ``bytes`` are of all that the stack holds, an untied copy included."""
    opened.running.load(opened.weights)
    opened.loaded = True
    held, _ = split_state(opened.running.state())
    # A gradient-only workload may have no parameters at all; the hash of nothing is still a hash.
    # Numbers of another width are other weights, were they equal: they take other room, and other time.
    back = {
        n: np.ascontiguousarray(
            a
            if is_narrow(a) != is_narrow(opened.weights[n])
            else a.astype(opened.weights[n].dtype, copy=False)
        )
        for n, a in held.items()
        if n in opened.weights
    }
    want = {n: np.ascontiguousarray(a) for n, a in opened.weights.items()}
    differing = next((n for n in sorted(want) if n not in back or not _equal(back[n], want[n])), None)
    reference = canonical_hash(want)
    # Bit for bit the same names and values hash alike: half a gigabyte is not hashed twice.
    same = differing is None and back.keys() == want.keys()
    return {
        "weights": {
            "hash": reference if same else canonical_hash(back),
            "reference_hash": reference,
            "count": len(held),
            "reference_count": len(want),
            "bytes": sum(a.nbytes for a in held.values()),
            "differing": differing,
        }
    }
