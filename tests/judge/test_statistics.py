"""Intervals of paired log ratios: checked against closed values, and by the symmetries that they must have."""

from __future__ import annotations

import math
import statistics as plain
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detente.judge.statistics import (
    MARGIN,
    MARGIN_CAP,
    Paired,
    blocks_needed,
    corrected,
    geometric_interval,
    interval,
    paired,
    t_quantile,
)
from detente.judge.verdicts import judge_pair
from detente.records.sample import Sample, process_median

seconds = st.floats(1e-6, 1e3)
times = st.lists(st.tuples(seconds, seconds), min_size=5, max_size=15)
scales = st.floats(1e-3, 1e3)


def pair_of(rows: list[tuple[float, float]]) -> Paired:
    a, b = ({i: r[k] for i, r in enumerate(rows)} for k in (0, 1))
    return paired(a, b, range(len(rows)))


def test_t_quantiles_are_the_tables():
    assert t_quantile(0.975, 4) == pytest.approx(2.776445, abs=1e-6)
    assert t_quantile(0.95, 9) == pytest.approx(1.833113, abs=1e-6)


def test_interval_by_hand():
    logs = [0.01, 0.02, 0.03, 0.02, 0.02]
    pair = Paired(5, plain.fmean(logs), plain.stdev(logs), rho=0.0)  # as for independent blocks
    found = interval(pair, 0.05)
    half = 2.7764451 * plain.stdev(logs) / math.sqrt(5)
    assert found and (found.low, found.high) == pytest.approx((0.02 - half, 0.02 + half), abs=1e-8)


def test_paired_leaves_out_blocks_that_a_side_lacks():
    pair = paired({0: 2.0, 1: 4.0, 3: 9.0}, {0: 1.0, 1: 2.0, 2: 5.0}, range(4))
    assert (pair.n, pair.mean) == (2, pytest.approx(math.log(2)))


def test_correction_counts_pairs_and_looks():
    assert corrected(0.05, pairs=3, share=1 / 3) == pytest.approx(0.05 / 9)
    assert corrected(0.05, pairs=0, share=1 / 3) == pytest.approx(0.05 / 3)


def test_process_median_weighs_queued_steps_and_drops_nothing():
    samples = (Sample(10_000_000, 10), Sample(2_000_000, 1), Sample(30_000_000, 10))
    assert process_median(samples) == pytest.approx(2e-3)
    assert process_median(()) is None


@given(times)
def test_swapping_the_sides_mirrors_everything(rows):
    pair, back = pair_of(rows), pair_of([(b, a) for a, b in rows])
    assert back.mean == pytest.approx(-pair.mean, abs=1e-12) and back.sd == pytest.approx(pair.sd, abs=1e-12)
    mirror = {"FASTER": "SLOWER", "SLOWER": "FASTER"}
    word = judge_pair("g", "a", "b", pair, MARGIN, 3)
    other = judge_pair("g", "b", "a", pair.mirrored(), MARGIN, 3)
    assert other.word == mirror.get(word.word, word.word)
    assert other.ratio == pytest.approx(1 / word.ratio)
    assert (other.low, other.high) == pytest.approx((1 / word.high, 1 / word.low), rel=1e-9)
    assert other.needed == word.needed


@given(times, scales)
def test_scaling_the_machine_changes_nothing(rows, scale):
    pair, scaled = pair_of(rows), pair_of([(a * scale, b * scale) for a, b in rows])
    assert (scaled.mean, scaled.sd) == pytest.approx((pair.mean, pair.sd), rel=1e-6, abs=1e-9)


@given(times, st.floats(0.001, 0.04), st.floats(0.001, 0.04))
def test_more_pairs_and_less_alpha_only_widen(rows, a, b):
    small, large = sorted((a, b))
    wide, narrow = interval(pair_of(rows), small), interval(pair_of(rows), large)
    assert wide and narrow
    assert wide.low <= narrow.low <= narrow.high <= wide.high


@given(times, st.floats(0.001, 0.3), st.floats(0.001, 0.3))
def test_a_wider_margin_never_makes_a_difference(rows, a, b):
    narrow, wide = sorted((a, b))
    pair = pair_of(rows)
    first, second = (judge_pair("g", "a", "b", pair, m, 1).word for m in (narrow, wide))
    if second in ("FASTER", "SLOWER"):
        assert first == second
    # A margin that is wider than the cap settles nothing: a noisy machine calls nothing the same.
    if first == "SAME":
        assert second == ("SAME" if wide <= MARGIN_CAP else "UNDECIDED")


@given(st.integers(2, 15), st.floats(-0.5, 0.5), st.floats(1e-5, 0.3), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_needed_blocks_are_more_than_measured_and_fewer_when_quieter(n, mean, sd, pairs):
    alpha = corrected(0.05, pairs, 1 / 3)
    needed = blocks_needed(Paired(n, mean, sd), MARGIN, alpha)
    assert needed is None or needed > n
    quieter = blocks_needed(Paired(n, mean, sd / 2), MARGIN, alpha)
    if needed is not None:
        assert quieter is not None and quieter <= needed


def test_a_difference_on_the_margin_needs_no_number_of_blocks():
    assert blocks_needed(Paired(10, math.log1p(MARGIN), 0.01), MARGIN, 0.05) is None


def test_blocks_needed_does_decide():
    """Feeding the number back with the same mean and spread gives a word."""
    for mean, sd in ((0.04, 0.02), (-0.05, 0.03), (0.0, 0.02), (0.005, 0.015)):
        needed = blocks_needed(Paired(5, mean, sd), MARGIN, corrected(0.05, 3, 1 / 3))
        assert needed is not None
        assert judge_pair("g", "a", "b", Paired(needed, mean, sd), MARGIN, 3).word in (
            "FASTER",
            "SLOWER",
            "SAME",
        )


def test_geometric_interval_wants_three_processes():
    assert geometric_interval([1.0, 1.1]) is None
    low, high = geometric_interval([1.0, 1.0, 1.0]) or (0, 0)
    assert (low, high) == pytest.approx((1.0, 1.0))


def test_importing_the_judge_imports_neither_scipy_nor_numpy():
    code = "import sys, detente.judge; print(sorted({'scipy', 'numpy', 'torch', 'jax'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
