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
