"""Maximal tandem repeats of a token sequence: every stretch that is a run of one block, for every period."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stretch:
    """``token[k] == token[k + period]`` for every k with start <= k and k + period < start + length."""

    start: int
    period: int
    length: int

    @property
    def count(self) -> int:
        """Whole iterations that fit."""
        return self.length // self.period

    @property
    def saved(self) -> int:
        """Nodes that one loop over the stretch would save; an upper bound, since the wiring may not fit."""
        return (self.count - 1) * self.period


def stretches(
    token: np.ndarray,
    low: int,
    high: int,
    minimum_nodes: int,
    minimum_count: int,
    maximum_nodes: int | None = None,
) -> list[Stretch]:
    """All maximal stretches inside ``token[low:high]`` with a block of at least ``minimum_nodes`` nodes (and at most
    ``maximum_nodes``) that fits ``minimum_count`` times; the largest saving first, then the shortest block, then the
    earliest.

    Quadratic in ``high - low`` with a numpy comparison per period: 2,000 nodes take about 15 ms.

    >>> stretches(np.array([9, 1, 2, 1, 2, 1, 2, 7]), 0, 8, 1, 2)
    [Stretch(start=1, period=2, length=6)]
    """
    window = token[low:high]
    found = []
    longest = len(window) // minimum_count
    if maximum_nodes is not None:
        longest = min(longest, maximum_nodes)
    for period in range(minimum_nodes, longest + 1):
        same = window[:-period] == window[period:]
        needed = (minimum_count - 1) * period
        if np.count_nonzero(same) < needed:
            continue
        breaks = np.flatnonzero(~same)
        starts = np.concatenate(([0], breaks + 1))
        lengths = np.concatenate((breaks, [len(same)])) - starts
        for k in np.flatnonzero(lengths >= needed):
            found.append(Stretch(low + int(starts[k]), period, int(lengths[k]) + period))
    return sorted(found, key=lambda s: (-s.saved, s.period, s.start))
