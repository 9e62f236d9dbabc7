"""Words: which interval gives which, when the session stops, and which pairs are shown."""

from __future__ import annotations

import math

import pytest
from planted_sessions import make_session

from detente.judge import judge
from detente.judge.statistics import MARGIN, Paired, corrected, interval
from detente.judge.verdicts import decide, is_look, judge_noise, judge_pair, layout_pairs
from detente.records.verdict import Verdict


def word(n: int, mean: float, sd: float, margin: float = MARGIN, pairs: int = 1) -> Verdict:
    return judge_pair("g", "a", "b", Paired(n, mean, sd), margin, pairs)


@pytest.mark.parametrize(
    ("n", "mean", "sd", "expected"),
    [
        (5, -0.10, 0.01, "FASTER"),
        (5, 0.10, 0.01, "SLOWER"),
        (10, 0.001, 0.005, "SAME"),
        # Excludes 1 and lies inside the margin: a difference too small to matter is SAME, not LEANS.
        (15, 0.005, 0.002, "SAME"),
        (10, 0.025, 0.01, "LEANS"),
        (10, 0.01, 0.05, "UNDECIDED"),
        # However large: with fewer than five blocks nothing is decided.
        (4, -0.70, 0.001, "UNDECIDED"),
        (1, -0.70, math.inf, "UNDECIDED"),
        (0, 0.0, math.inf, "UNDECIDED"),
    ],
)
def test_words(n, mean, sd, expected):
    assert word(n, mean, sd).word == expected


def test_the_printed_interval_is_the_judged_one():
    """FASTER prints the corrected 95 % interval, SAME the corrected 90 % one, and each proves its word."""
    faster = word(5, -0.10, 0.01, pairs=3)
    wide = interval(Paired(5, -0.10, 0.01), corrected(0.05, 3))
    assert wide and (faster.low, faster.high) == wide.ratios and faster.high < 1 / 1.02
    same = word(10, 0.001, 0.01, pairs=3)
    narrow = interval(Paired(10, 0.001, 0.01), corrected(0.10, 3))
    assert same.word == "SAME"
    assert narrow and (same.low, same.high) == narrow.ratios and 1 / 1.02 < same.low < same.high < 1.02


def test_margin_edges_are_symmetric_in_ratio():
    """1 / 1.02 is as far from equal as 1.02 is."""
    assert word(5, math.log(1.0201), 0.0).word == "SLOWER"
    assert word(5, -math.log(1.0201), 0.0).word == "FASTER"
    assert word(5, -math.log(1.0199), 0.0).word == "SAME"


def test_undecided_and_leans_say_how_many_blocks_are_needed():
    open_pair, leaning = word(5, 0.06, 0.05), word(10, 0.03, 0.014)
    assert open_pair.word == "UNDECIDED" and open_pair.needed and open_pair.needed > 5
    assert str(open_pair.needed) in open_pair.reason
    assert leaning.word == "LEANS" and leaning.needed and leaning.needed > 10
    assert word(3, 0.0, 0.01).needed == 5


def test_noise_widens_the_margin_to_its_upper_bound():
    noisy = judge_noise("g", "jax#aa", "jax", Paired(10, 0.005, 0.03, rho=0.0))
    found = interval(Paired(10, 0.005, 0.03, rho=0.0), corrected(0.05, 1))
    assert found and noisy.margin == pytest.approx(math.expm1(found.high))
    assert noisy.margin > MARGIN and not noisy.drifting
    assert judge_noise("g", "jax#aa", "jax", Paired(10, 0.0, 0.001)).margin == MARGIN


def test_noise_is_judged_against_the_fixed_margin():
    drift = judge_noise("g", "jax#aa", "jax", Paired(5, 0.08, 0.005))
    assert (
        drift.drifting and drift.verdict and drift.verdict.word == "SLOWER" and drift.verdict.margin == MARGIN
    )
    # Under five blocks there is nothing to be sure of, and nothing drifts.
    assert not judge_noise("g", "jax#aa", "jax", Paired(4, 0.08, 0.001)).drifting


def test_up_to_four_rows_every_pair_is_shown():
    pairs, counted = layout_pairs(("a", "b", "c"), "c")
    assert pairs == (("b", "a"), ("c", "a"), ("c", "b")) and counted == 3


def test_five_rows_stand_against_the_reference_and_the_fastest():
    pairs, counted = layout_pairs(("a", "b", "c", "d", "e"), "c")
    assert set(pairs) == {("b", "a"), ("c", "a"), ("d", "a"), ("e", "a"), ("c", "b"), ("d", "c"), ("e", "c")}
    # The fastest is picked by the data, so every pair that could have been picked is paid for.
    assert counted == 10


def _verdicts(*words):
    return [Verdict("g", "a", "b", w, None, None, None, MARGIN, 5) for w in words]


@pytest.mark.parametrize(
    ("blocks", "words", "go_on"),
    [
        (0, (), True),
        (4, ("FASTER",), True),
        (5, ("FASTER", "SAME", "VOID"), False),
        (5, ("FASTER", "UNDECIDED"), True),
        (5, ("LEANS",), True),
        (7, ("FASTER",), True),
        (10, ("LEANS", "SLOWER"), True),
        (10, ("SLOWER",), False),
        (15, ("LEANS",), False),
        (15, ("UNDECIDED",), False),
        (16, ("UNDECIDED",), False),
        (5, (), False),
    ],
)
def test_the_session_goes_on_until_every_pair_is_settled(blocks, words, go_on):
    decision = decide(blocks, None, _verdicts(*words))
    assert bool(decision) is go_on and decision.reason
    assert decision.look is (blocks in (5, 10, 15, 16))


def test_a_fixed_number_of_blocks_is_kept():
    assert [bool(decide(n, 3, None)) for n in range(5)] == [True, True, True, False, False]
    assert not is_look(5, 3) and is_look(5, None) and not is_look(6, None)


def test_blocks_that_were_settled_beforehand_are_looked_at_once():
    asked, open_ended = (judge(make_session(settings={"blocks": blocks})) for blocks in (5, None))
    for once, thrice in zip(asked.verdicts, open_ended.verdicts, strict=True):
        assert once.ratio == thrice.ratio
        assert once.high - once.low < thrice.high - thrice.low
    group = next(iter(asked.session.margins))
    assert asked.session.margins[group] <= open_ended.session.margins[group]
