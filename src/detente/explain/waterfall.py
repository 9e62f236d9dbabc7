"""The gap between two stacks, shared out among the causes that were switched one by one.

An arm is a set of causes that stand as stack B has them, the others as A has them. The effect of a cause depends on
what was switched before it (a fusion that is off makes every difference of the programs dear), so that no single order
is right: a cause gets the mean of its effects over all orders, which is its Shapley value, and the least and the
largest of them stand beside it. Up to ``FULL`` causes every arm is run; above, the arms of some orders and of their
reverses.

All effects are differences of log times within one block, as everywhere in the referee: exp of one is a ratio. They add
up to the effect of switching all causes at once; what the two stacks lie apart beyond that is the residual, measured.

Source: L. Shapley, A Value for n-Person Games, 1953; sampled orders with their reverses: R. Mitchell et al., Sampling
Permutations for Shapley Value Estimation, JMLR 2022.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from detente.judge.block_correlation import STORED
from detente.judge.statistics import ALPHA, Interval, Paired, corrected, interval
from detente.records.fault import UsageFault

# So many causes have 2^4 arms; five would have 32, each in every block.
FULL = 4

# As a log ratio: what sums of the same logarithms differ by.
_NOTHING = 1e-9
# Of the gap, what may be left of one that is explained.
_LEFT = 0.1

Left = Literal["explained", "not explained", "not settled"]

Arm = frozenset[str]
Order = tuple[str, ...]
# Block -> median seconds per step of the process that ran in it.
Medians = Mapping[int, float]


@dataclass(frozen=True)
class Effect:
    """A mean difference of log times over blocks: below 0 is faster. ``interval`` is None under two blocks."""

    mean: float
    interval: Interval | None

    @property
    def ratio(self) -> float:
        """By which factor a step takes longer."""
        return math.exp(self.mean)


@dataclass(frozen=True)
class Bar:
    """What one cause is worth. ``orders``: its least and largest effect over the orders that were run, each a mean over
    blocks. ``below_noise``: its interval does not lie wholly beyond what one stack differs from itself by, as that of
    an arm must. ``interacts``: two orders disagree beyond noise, so that its size is that of no single change."""

    cause: str
    effect: Effect
    orders: tuple[float, float]
    below_noise: bool
    interacts: bool = False


@dataclass(frozen=True)
class Waterfall:
    """From stack A to stack B over ``blocks`` blocks. The bars and the residual add up to the gap. ``noise``: the log
    ratio by which one row differs from itself, beyond which a bar has to lie."""

    gap: Effect
    bars: tuple[Bar, ...]
    residual: Effect
    blocks: int
    noise: float = 0.0

    @property
    def left(self) -> Left:
        """Whether the gap is explained: no size of what is left that is possible is more than a tenth of it. A worse
        measurement explains nothing more: where a tenth is possible and nothing is, too, it is not settled."""
        found, most = self.residual.interval, _LEFT * abs(self.gap.mean)
        if found is None:
            return "not settled" if abs(self.residual.mean) <= most else "not explained"
        if max(abs(found.low), abs(found.high)) <= most:
            return "explained"
        return "not explained" if found.low > most or found.high < -most else "not settled"

    @property
    def explained(self) -> bool:
        return self.left == "explained"

    @property
    def by_construction(self) -> bool:
        """Whether nothing could be left: the arms begin with A's own row and end with B's, so that the bars are the
        gap, whatever they were."""
        ends = self.residual.interval
        return bool(self.bars) and ends is not None and max(abs(ends.low), abs(ends.high)) < _NOTHING


def orders_of(causes: Sequence[str], pairs: int = 6, seed: int = 0) -> tuple[Order, ...]:
    """The orders in which causes are switched: all of them up to ``FULL`` causes, above that ``pairs`` drawn ones, each
    with its reverse.

    >>> orders_of(["tracing", "program"])
    (('tracing', 'program'), ('program', 'tracing'))
    """
    if len(set(causes)) != len(causes):
        raise UsageFault(f"a cause is named twice: {', '.join(causes)}", "name each once")
    if len(causes) <= FULL:
        return tuple(itertools.permutations(causes))
    drawn = random.Random(seed)
    found: dict[Order, None] = {}
    while len(found) < 2 * pairs:
        order = tuple(drawn.sample(list(causes), len(causes)))
        found |= {order: None, order[::-1]: None}
    return tuple(found)


def arms_of(orders: Iterable[Order]) -> tuple[Arm, ...]:
    """Every set of switched causes that some order passes through, none and all among them; smaller ones first.

    >>> [sorted(arm) for arm in arms_of([("a", "b"), ("b", "a")])]
    [[], ['a'], ['b'], ['a', 'b']]
    """
    found = {frozenset(order[:k]) for order in orders for k in range(len(order) + 1)}
    return tuple(sorted(found, key=lambda arm: (len(arm), sorted(arm))))


def waterfall(
    times: Mapping[Arm, Medians],
    a: Medians,
    b: Medians,
    orders: Sequence[Order],
    noise: float = 0.0,
    alpha: float = ALPHA,
    rho: float = STORED.bound,
) -> Waterfall:
    """The bars of the causes that ``orders`` switch, from the arms' ``times``.

    ``a`` and ``b`` are the two stacks' own rows, which were measured in the same blocks and are no arms: the empty arm
    is A's program as the arms run it. ``noise``: the log ratio that one stack differs from itself by; ``rho``: the
    correlation of neighbouring blocks; ``alpha``: of the gap, and of all bars together. Blocks in which any of these is
    missing are left out. Raises UsageFault where an arm was never measured, or no block is whole.
    """
    wanted = arms_of(orders)
    missing = [arm for arm in wanted if not times.get(arm)]
    if missing:
        told = "; ".join(" + ".join(sorted(arm)) or "nothing switched" for arm in missing)
        raise UsageFault(f"these arms were not measured: {told}", "measure them, or leave their causes out")
    whole = sorted(set(a).intersection(b, *(times[arm] for arm in wanted)))
    if not whole:
        raise UsageFault("no block holds every arm and both stacks", "measure them in the same blocks")
    logs = {arm: [math.log(times[arm][block]) for block in whole] for arm in wanted}
    gap = [math.log(b[block]) - math.log(a[block]) for block in whole]
    bars, explained = [], [0.0] * len(whole)
    causes = tuple(dict.fromkeys(cause for order in orders for cause in order))
    each = corrected(alpha, len(causes), 1.0)
    for cause in causes:
        steps = [_step(order, cause, logs) for order in orders]
        mine = [math.fsum(column) / len(steps) for column in zip(*steps, strict=True)]
        explained = [done + one for done, one in zip(explained, mine, strict=True)]
        means = [math.fsum(step) / len(step) for step in steps]
        effect = _effect(mine, each, rho)
        beside = {frozenset(o[: o.index(cause)]): s for o, s in zip(orders, steps, strict=True)}
        apart = _apart(beside, each, rho, noise)
        bars.append(Bar(cause, effect, (min(means), max(means)), not _beyond(effect, noise), apart))
    left = [whole_gap - done for whole_gap, done in zip(gap, explained, strict=True)]
    return Waterfall(_effect(gap, alpha, rho), tuple(bars), _effect(left, alpha, rho), len(whole), noise)


def _beyond(effect: Effect, noise: float) -> bool:
    """Whether no size that is possible is as small as ``noise``, a log ratio."""
    return effect.interval is not None and effect.interval.beyond(math.expm1(max(noise, _NOTHING)))


def _apart(steps: Mapping[Arm, list[float]], alpha: float, rho: float, noise: float) -> bool:
    """Whether a cause is worth something else beside one set of switched causes than beside another. The largest of
    many differences is large by chance: each is held to its share of alpha."""
    pairs = tuple(itertools.combinations(steps.values(), 2))
    each = corrected(alpha, len(pairs), 1.0)
    differences = ([late - early for early, late in zip(a, b, strict=True)] for a, b in pairs)
    return any(_beyond(_effect(one, each, rho), noise) for one in differences)


def _step(order: Order, cause: str, logs: Mapping[Arm, list[float]]) -> list[float]:
    """What switching ``cause`` does in this order, a block each."""
    at = order.index(cause)
    before, after = logs[frozenset(order[:at])], logs[frozenset(order[: at + 1])]
    return [late - early for early, late in zip(before, after, strict=True)]


def _effect(values: Sequence[float], alpha: float, rho: float) -> Effect:
    n = len(values)
    mean = math.fsum(values) / n
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else math.inf
    return Effect(mean, interval(Paired(n, mean, sd, rho), alpha))
