"""Values that are right and no numbers: logits of a class that is not allowed are minus infinity, a metric of a class
that no row has is NaN, a mask among the buffers holds both.

Nothing can be said of such a place by a difference (minus infinity less itself is NaN). So a tensor that holds them is
compared as two: its values with 0 in these places, and the places, with what stands in each. How it can fail: a loss, a
gradient or a state that holds them trains nothing, and is never taken apart; it fails its proof.
"""

from __future__ import annotations

import numpy as np

from detente.workloads.narrow import widened


def places(array: np.ndarray) -> np.ndarray | None:
    """What stands where no finite number does: 1 for infinity, 2 for minus infinity, 3 for NaN, and 0 elsewhere. None
    where all are finite.

    >>> places(np.array([0.5, -np.inf, np.nan, np.inf])).tolist()
    [0.0, 2.0, 3.0, 1.0]
    """
    if array.dtype.kind not in "fcV":
        return None
    numbers = widened(array)
    found = ~np.isfinite(numbers)
    if not found.any():
        return None
    there = numbers[found]
    codes = np.zeros(numbers.shape, np.float32)
    codes[found] = np.where(np.isnan(there), 3, np.where(np.real(there) > 0, 1, 2))
    return codes


def finite_part(array: np.ndarray, found: np.ndarray | None) -> np.ndarray:
    """The array with 0 in the ``places`` that were found in it; itself where there were none."""
    return array if found is None else np.where(found > 0, 0, widened(array))
