"""The statistics of a pair: the process is the replicate, the block pairs two of them.

Everything is symmetric in log space: ``log(time a / time b)`` of one block is one observation, the margin 2 % is
``log 1.02`` on both sides, and so swapping a and b mirrors every number here. scipy is imported where a quantile
is needed and nowhere else.
"""

from __future__ import annotations

import bisect
import functools
import math
import statistics as plain
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from detente.judge.block_correlation import STORED
from detente.judge.correlation import widening
from detente.records.verdict import LEAST_BLOCKS

ALPHA = 0.05
MARGIN = 0.02
# The margin of SAME follows the A/A pair up to here. Beyond it "the same" would say nothing that anyone asked for.
MARGIN_CAP = 0.05


@dataclass(frozen=True)
class Paired:
    """Log ratios of one pair, a block each: ``n`` blocks, their mean, their standard deviation (n - 1), and the
    correlation ``rho`` between neighbouring blocks that its intervals are widened for."""

    n: int
    mean: float
    sd: float
    rho: float = STORED.bound

    def mirrored(self) -> Paired:
        """The same pair with a and b exchanged."""
        return Paired(self.n, -self.mean, self.sd, self.rho)

    def reach(self, quantile: float, n: int | None = None) -> float:
        """``quantile`` standard errors of the mean of ``n`` blocks (those measured), correlation included."""
        return quantile * self.sd * widening(self.rho) / math.sqrt(n or self.n)


@dataclass(frozen=True)
class Interval:
    """A two-sided interval of the mean log ratio, with the level that it was made for."""

    low: float
    high: float
    level: float

    @property
    def ratios(self) -> tuple[float, float]:
        """The interval as ratios of times."""
        return math.exp(self.low), math.exp(self.high)

    @property
    def bound(self) -> float:
        """How far from "equal" the truth may lie: the larger end, as a relative difference."""
        return math.expm1(max(abs(self.low), abs(self.high)))

    def inside(self, margin: float) -> bool:
        """Wholly within the relative ``margin`` of equal."""
        edge = math.log1p(margin)
        return -edge < self.low and self.high < edge

    def beyond(self, margin: float) -> bool:
        """Wholly outside the relative ``margin``, on one side."""
        edge = math.log1p(margin)
        return self.high < -edge or self.low > edge

    def excludes_equal(self) -> bool:
        return self.low > 0 or self.high < 0


def log_ratios(a: Mapping[int, float], b: Mapping[int, float], blocks: Iterable[int]) -> tuple[float, ...]:
    """Log ratios of a over b in the order of ``blocks``. ``a`` and ``b`` map a block to the median seconds of the
    process that ran in it; blocks that either lacks are left out."""
    return tuple(math.log(a[i] / b[i]) for i in blocks if i in a and i in b)


def paired(
    a: Mapping[int, float], b: Mapping[int, float], blocks: Iterable[int], rho: float = STORED.bound
) -> Paired:
    """The summary of ``log_ratios``."""
    logs = log_ratios(a, b, blocks)
    n = len(logs)
    mean = math.fsum(logs) / n if n else 0.0
    # Medians of whole nanoseconds can agree to the last digit; an sd of 0 is then right, and the interval a point.
    sd = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (n - 1)) if n > 1 else math.inf
    return Paired(n, mean, sd, rho)


def corrected(alpha: float, pairs: int, share: float) -> float:
    """Bonferroni: what one pair may spend of ``alpha`` at a look that has this ``share`` of it (``looks_of``)."""
    return alpha * share / max(pairs, 1)


@functools.lru_cache(maxsize=4096)
def t_quantile(p: float, df: int) -> float:
    """The p-quantile of Student's t with ``df`` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def interval(pair: Paired, alpha: float) -> Interval | None:
    """The two-sided ``1 - alpha`` interval of the mean log ratio; None under two blocks."""
    if pair.n < 2:
        return None
    half = pair.reach(t_quantile(1 - alpha / 2, pair.n - 1))
    return Interval(pair.mean - half, pair.mean + half, 1 - alpha)


def blocks_needed(pair: Paired, margin: float, alpha: float, most: int = 500) -> int | None:
    """Blocks in all that would decide this pair with a power of 80 %, if mean and spread stay as they are.

    Outside the margin that is FASTER or SLOWER (two-sided ``alpha``), inside it SAME (two one-sided tests, so
    twice ``alpha``). None where the mean sits on the margin, or more than ``most`` would be needed: more blocks do
    not settle that.

    Source: notes on sampling after Kalibera and Jones, ISMM 2013; the t quantiles follow n, so it is a search.
    """
    if pair.n < 2 or not math.isfinite(pair.sd):
        return None
    edge = math.log1p(margin)
    gap = abs(pair.mean) - edge
    tail = alpha / 2 if gap > 0 else alpha
    # Near 0 both one-sided tests must succeed, so each gets half of what may go wrong.
    power = 0.8 if gap > 0 or abs(pair.mean) > edge / 2 else 0.9

    def decides(n: int) -> bool:
        return pair.reach(t_quantile(1 - tail, n - 1) + t_quantile(power, n - 1), n) <= abs(gap)

    # What is out of reach falls with every block, so the first number that decides is found by halving.
    n = LEAST_BLOCKS + bisect.bisect_left(range(LEAST_BLOCKS, most + 1), True, key=decides)
    return max(n, pair.n + 1) if n <= most else None


def geometric_interval(medians: Iterable[float], alpha: float = ALPHA) -> tuple[float, float] | None:
    """The ``1 - alpha`` t interval of the geometric mean of process medians, seconds; None under three."""
    logs = [math.log(m) for m in medians]
    if len(logs) < 3:
        return None
    # A row's own level moves with the machine, which is no error of a ratio: described, not judged, so not widened.
    found = interval(Paired(len(logs), math.fsum(logs) / len(logs), plain.stdev(logs), rho=0.0), alpha)
    assert found is not None
    return found.ratios
