"""Words: which interval gives which, when the session stops, and which pairs are shown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from planted_sessions import make_session

from detente.judge import judge, more_blocks
from detente.judge.looks import Looks, looks_of
from detente.judge.statistics import MARGIN, Paired, corrected, interval
from detente.judge.verdicts import decide, judge_noise, judge_pair, layout_pairs
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
    wide = interval(Paired(5, -0.10, 0.01), corrected(0.05, 3, 1 / 3))
    assert wide and (faster.low, faster.high) == wide.ratios and faster.high < 1 / 1.02
    same = word(10, 0.001, 0.01, pairs=3)
    narrow = interval(Paired(10, 0.001, 0.01), corrected(0.10, 3, 1 / 3))
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
    found = interval(Paired(10, 0.005, 0.03, rho=0.0), corrected(0.05, 1, 1 / 3))
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
    decision = decide(blocks, Looks(), _verdicts(*words))
    assert bool(decision) is go_on and decision.reason
    assert decision.look is (blocks in (5, 10, 15, 16))


def test_a_fixed_number_of_blocks_is_kept():
    assert [bool(decide(n, Looks((3,), 1.0), None)) for n in range(5)] == [True, True, True, False, False]
    assert not Looks((5,), 1.0).between(5) and Looks().between(5) and not Looks().between(6)


def test_blocks_that_were_settled_beforehand_are_looked_at_once():
    asked, open_ended = (judge(make_session(settings={"blocks": blocks})) for blocks in (5, None))
    for once, thrice in zip(asked.verdicts, open_ended.verdicts, strict=True):
        assert once.ratio == thrice.ratio
        assert once.high - once.low < thrice.high - thrice.low
    group = next(iter(asked.session.margins))
    assert asked.session.margins[group] <= open_ended.session.margins[group]


def ended(whole: int, looked: int, **settings):
    return replace(make_session(whole, settings=settings), looked=looked)


def test_the_end_of_a_budget_is_one_look_and_the_next_have_what_it_left():
    shares = [looks_of(ended(7, looked, budget_s=720.0)).share for looked in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.8, 0.16, 0.032, 0.0064]) and sum(shares) < 1
    # Until it ends the next end's share holds: whoever reads a report of it meanwhile reads the same words.
    going = replace(ended(7, 1, budget_s=720.0), ended=None)
    assert looks_of(going).share == pytest.approx(0.16) and looks_of(going).at == (15,)


def test_an_end_beyond_counting_still_has_a_finite_interval():
    assert all(math.isfinite(v.high) for v in judge(ended(7, 9999, budget_s=720.0)).verdicts)


def test_sessions_that_never_counted_their_ends_keep_the_rule_of_three():
    assert looks_of(ended(7, 0, budget_s=720.0)) == Looks() == looks_of(ended(7, 1, budget_s=None))


def test_a_number_of_blocks_that_a_budget_cut_short_is_not_looked_at_twice_for_nothing():
    assert looks_of(ended(5, 1, blocks=5, budget_s=720.0)).share == 1.0
    assert looks_of(ended(7, 1, blocks=10, budget_s=720.0)).share == pytest.approx(0.8)
    assert looks_of(ended(10, 2, blocks=10, budget_s=720.0)).share == pytest.approx(0.16)


def test_a_session_that_goes_on_while_its_question_is_open_spends_most_at_its_first_look():
    looks = {whole: looks_of(ended(whole, 1, blocks=5, blocks_at_most=15)) for whole in (3, 5, 7, 10, 15)}
    assert {found.at for found in looks.values()} == {(5, 10, 15)}
    assert [looks[n].share for n in (3, 5, 7, 10, 15)] == pytest.approx([0.7, 0.7, 0.15, 0.15, 0.15])
    assert sum(looks[n].share for n in (5, 10, 15)) <= 1 + 1e-12
    # A number that was settled, and no more, is one look as ever.
    assert looks_of(ended(5, 1, blocks=5, blocks_at_most=None)) == Looks((5,), 1.0)
    assert looks_of(ended(5, 1, blocks=5, blocks_at_most=5)) == Looks((5,), 1.0)


def test_a_budget_gives_narrower_intervals_than_three_looks_and_stops_for_no_word():
    once, thrice = (judge(ended(5, looked, budget_s=720.0)).verdicts for looked in (1, 0))
    for a, b in zip(once, thrice, strict=True):
        assert a.ratio == b.ratio and a.high - a.low < b.high - b.low
    going = replace(ended(5, 0, budget_s=720.0), ended=None)
    assert more_blocks(going) and not more_blocks(replace(ended(15, 0, budget_s=720.0), ended=None))
