"""Two sets of process medians that were not run side by side: Welch's interval of their ratio. Pure.

Within a session the judge compares paired blocks; between sessions nothing is paired, so the interval is
wider and the words are others: CHANGED, NO CHANGE SEEN. And what a machine is like lasts as long as a session: the
processes of one tell how far they lie apart, and nothing of how far the next session lies from it. Of ten sessions of
one program on one quiet machine, one behind the other, 10 of 45 pairs were "changed"
(docs/results/block-correlation.jsonl, jax). How far sessions lie apart, three of the same thing tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LEAST = 5
MARGIN = 0.02
# Sessions of one thing from which on they say how far such sessions lie apart: of two, Student's t has a factor of 15.
SESSIONS = 3
Word = Literal["CHANGED", "NO CHANGE SEEN", "NOT COMPARABLE"]


@dataclass(frozen=True)
class Change:
    """``ratio`` is the geometric mean time now over before, with its interval; None where nothing is
    compared. ``known``: whether earlier sessions say how far sessions of one thing lie apart."""

    word: Word
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    known: bool = False


def compare_unpaired(
    before: Sequence[float],
    now: Sequence[float],
    *,
    comparisons: int = 1,
    margin: float = MARGIN,
    sessions: Sequence[Sequence[float]] = (),
) -> Change:
    """CHANGED when the 95 % interval of the ratio (Welch's t on logarithms, Bonferroni over
    ``comparisons``) lies wholly beyond ``margin``; NO CHANGE SEEN otherwise, which is not a proof of
    equality.

    Takes median seconds per step of each process, all above 0. ``sessions`` are earlier ones in which nothing had
    changed, ``before`` among them: from three on, the interval is no narrower than their means let a further one lie
    from ``before``. Under five processes on a side: NOT COMPARABLE. Source: B. L. Welch, "The generalization of
    Student's problem", Biometrika 34 (1947).

    >>> compare_unpaired([1.0, 1.01, 0.99, 1.0, 1.005], [1.2, 1.21, 1.19, 1.2, 1.205]).word
    'CHANGED'
    """
    if min(len(before), len(now)) < LEAST:
        return Change(
            "NOT COMPARABLE", f"{len(before)} and {len(now)} processes; {LEAST} are needed on each side"
        )
    a, b = [math.log(x) for x in before], [math.log(x) for x in now]
    (mean_a, va), (mean_b, vb) = _mean_and_error(a), _mean_and_error(b)
    shift = mean_b - mean_a
    half = 0.0
    tail = 1 - 0.025 / comparisons
    if va + vb > 0:
        freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
        half = _quantile(tail, freedom) * math.sqrt(va + vb)
    apart = _between(sessions, tail)
    half = max(half, apart or 0.0)
    known = apart is not None
    ratio, low, high = (math.exp(x) for x in (shift, shift - half, shift + half))
    if low > 1 + margin or high < 1 / (1 + margin):
        return Change("CHANGED", f"the interval lies beyond {margin * 100:.3g} %", ratio, low, high, known)
    reach = max(high, 1 / low) - 1
    return Change(
        "NO CHANGE SEEN", f"a change of {reach * 100:.2g} % could be hidden", ratio, low, high, known
    )


def _between(sessions: Sequence[Sequence[float]], tail: float) -> float | None:
    """How far, in logarithms, two sessions of the same thing may lie apart; None where too few are known."""
    means = [math.fsum(map(math.log, found)) / len(found) for found in sessions if len(found) >= LEAST]
    if len(means) < SESSIONS:
        return None
    _, error = _mean_and_error(means)
    # Of two sessions each has the variance of one, which is that of the mean times their number.
    return _quantile(tail, len(means) - 1) * math.sqrt(2 * error * len(means))


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean, and the squared standard error of it. (statistics.variance counts in fractions: twenty times
    slower.)"""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values)


def _quantile(probability: float, freedom: float) -> float:
    # Imported here: listing sessions must not wait for scipy.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))
