"""Blocks that resemble their neighbours: how much wider an interval must be.

Student's t takes blocks for independent. On a machine whose state outlives a block they are not, and the mean of n of
them then scatters by sqrt((1 + rho) / (1 - rho)) more than their spread says (AR(1), large n). One session cannot tell
its own rho: of 15 blocks at a true 0.5 the estimate has mean 0.2 and standard deviation 0.27. So the bound comes
from many stored sessions, and the session's own estimate may only add to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from detente.judge.block_correlation import STORED

# With fewer blocks the session's own estimate is noise (standard deviation over 0.3 at a true 0): shown, not used.
OWN_FROM = 10
# Nearer to 1 an estimate means only "nothing can be said"; the factor is 6.2 here.
MOST = 0.95


def lag_one(logs: Sequence[float]) -> float | None:
    """The lag-1 autocorrelation of one pair's log ratios in the order of their blocks; None under four blocks, or
    where all are equal."""
    if len(logs) < 4:
        return None
    mean = math.fsum(logs) / len(logs)
    away = [x - mean for x in logs]
    whole = math.fsum(x * x for x in away)
    if not whole > 0.0:
        return None
    return math.fsum(x * y for x, y in pairwise(away)) / whole


def own_estimate(series: Iterable[Sequence[float]]) -> float | None:
    """A session's own estimate: the mean over its pairs, 1/n added because the mean was taken from the same blocks.
    Pairs share rows, so that many pairs say little more than two."""
    found = [r + 1 / len(logs) for logs in series if (r := lag_one(logs)) is not None]
    return math.fsum(found) / len(found) if found else None


def assumed(own: float | None, blocks: int) -> float:
    """The correlation that intervals are widened for: the stored bound, or the session's own estimate where that is
    larger and rests on enough blocks. Never less than the stored bound."""
    larger = max(STORED.bound, own) if own is not None and blocks >= OWN_FROM else STORED.bound
    return min(MOST, max(0.0, larger))


def widening(rho: float) -> float:
    """By which factor an interval is wider where neighbouring blocks correlate by ``rho``; 1 at 0 and below.

    >>> round(widening(0.5), 3), widening(-0.2)
    (1.732, 1.0)
    """
    held = min(MOST, max(0.0, rho))
    return math.sqrt((1 + held) / (1 - held))
