"""Unpaired comparison: the words follow the interval, and the interval is Welch's."""

from __future__ import annotations

import math
import random

import pytest
import scipy.stats

from detente.store.unpaired import compare_unpaired


def draw(random_: random.Random, centre: float, n: int = 10, spread: float = 0.01) -> list[float]:
    return [centre * random_.lognormvariate(0, spread) for _ in range(n)]


def test_the_interval_is_welchs():
    random_ = random.Random(1)
    a, b = draw(random_, 1.0, 7, 0.02), draw(random_, 1.1, 12)
    change = compare_unpaired(a, b)
    wanted = scipy.stats.ttest_ind([math.log(x) for x in b], [math.log(x) for x in a], equal_var=False)
    low, high = wanted.confidence_interval(0.95)
    assert (change.low, change.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)


def test_more_comparisons_widen_it():
    random_ = random.Random(2)
    a, b = draw(random_, 1.0), draw(random_, 1.03)
    one, many = compare_unpaired(a, b), compare_unpaired(a, b, comparisons=20)
    assert many.low < one.low and many.high > one.high


@pytest.mark.parametrize(
    ("factor", "word"),
    [(1.0, "NO CHANGE SEEN"), (1.10, "CHANGED"), (0.9, "CHANGED"), (1.015, "NO CHANGE SEEN")],
)
def test_words(factor, word):
    random_ = random.Random(3)
    assert compare_unpaired(draw(random_, 1.0), draw(random_, factor)).word == word


def test_too_few_processes_are_not_compared():
    change = compare_unpaired([1.0] * 4, [2.0] * 9)
    assert change.word == "NOT COMPARABLE" and change.ratio is None
    assert "4 and 9 processes" in change.reason


def test_equal_programs_are_rarely_called_changed():
    random_ = random.Random(4)
    words = [
        compare_unpaired(draw(random_, 1, 10, 0.03), draw(random_, 1, 10, 0.03)).word for _ in range(1000)
    ]
    assert words.count("CHANGED") <= 5
    assert compare_unpaired([1.0] * 5, [1.0] * 5).word == "NO CHANGE SEEN"


def sessions(random_: random.Random, tau: float, count: int, n: int = 5) -> list[list[float]]:
    """Sessions of one program on a machine that is another one each time, by ``tau``."""
    return [draw(random_, random_.lognormvariate(0, tau), n) for _ in range(count)]


def test_sessions_of_one_program_lie_apart_and_their_processes_do_not_tell():
    """Of two sessions alone nobody knows it: they are called changed, and the gate does not count it."""
    random_ = random.Random(5)
    alone, known = [], []
    for _ in range(300):
        *earlier, now = sessions(random_, 0.03, 5)
        alone.append(compare_unpaired(earlier[-1], now))
        known.append(compare_unpaired(earlier[-1], now, sessions=earlier))
    assert sum(c.word == "CHANGED" for c in alone) > 60 and not any(c.known for c in alone)
    assert sum(c.word == "CHANGED" for c in known) <= 12 and all(c.known for c in known)


def test_a_change_beyond_what_sessions_lie_apart_is_seen():
    random_ = random.Random(6)
    earlier = sessions(random_, 0.005, 4)
    now = draw(random_, 1.2, 5)
    change = compare_unpaired(earlier[-1], now, sessions=earlier)
    assert change.word == "CHANGED" and change.known and change.low > 1.1


def test_two_sessions_and_short_ones_say_nothing_of_it():
    a = [1.0, 1.01, 0.99, 1.0, 1.005]
    assert not compare_unpaired(a, a, sessions=[a, a]).known
    assert not compare_unpaired(a, a, sessions=[a, a, a[:4]]).known
    assert compare_unpaired(a, a, sessions=[a, a, a]).known
