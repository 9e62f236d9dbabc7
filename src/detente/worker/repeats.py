"""Refuse a user's model that does not repeat itself: nothing can be proved of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from detente.records.fault import UsageFault

# Beyond what two runs of one program round apart, where a library sums in another order each time.
_APART = 1e-6


def check_repeats(
    running: Any,
    batch: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    name: str,
    dropping: Mapping[str, float],
) -> None:
    """Takes the loss of one batch twice, between which no weight moves, and loads ``weights`` again.

    running    of the region ``gradient``, in training mode
    dropping   what is known to drop out: name -> rate

    Raises UsageFault where the two losses differ, or are not finite. Statistics of batches move, and a loss in training
    mode does not depend on them.
    """
    running.load(weights)
    placed = running.place(batch)
    one, two = (running.loss(running.step(placed)) for _ in range(2))
    running.load(weights)
    if not np.isfinite(one):
        # Nothing is equal to it, eager's own loss neither: every row would be void for another function.
        raise UsageFault(
            f"{name}: the loss of its first batch is {one:g}, at the weights that it begins with",
            "only a finite loss can be compared; look for a logarithm or a division of 0, a root of less, a batch with "
            "such numbers, weights that nobody set",
        )
    if one == two or abs(one - two) <= _APART * abs(one):
        return
    if dropping:
        shown = ", ".join(f"{place} {rate:g}" for place, rate in list(dropping.items())[:3])
        why = f": it drops out ({shown}{', ...' if len(dropping) > 3 else ''})"
        mend = "--no-dropout sets every rate to 0, and the row says so: no two frameworks draw the same masks"
    else:
        why = ""
        mend = "take what is random (dropout, noise, a draw) out of forward and loss: no two frameworks draw the same"
    raise UsageFault(f"{name}: the loss of one batch is {one:.6g} and, asked again, {two:.6g}{why}", mend)
