"""The floor: the larger of two times, a peak that rows may raise, and a bound that caches do not fake."""

from __future__ import annotations

import pytest

from detente.judge.floor import CACHED, Peak, Work, best_peak, floor_column, impossible, raise_peak

PEAK = Peak(1e12, 1e11, (1, 1, 1))
COMPUTE = Work(10**12, 2 * CACHED)
TRAFFIC = Work(10**6, 10**11)


def test_the_larger_never_the_sum():
    assert PEAK.seconds(COMPUTE) == (1.0, "flops")
    assert PEAK.seconds(TRAFFIC) == (1.0, "bytes")


def test_bytes_that_fit_a_cache_bind_nothing():
    assert PEAK.seconds(Work(10**6, CACHED)) == (1e-6, "flops")


def test_peak_is_the_best_of_all_probes():
    a = {"shapes": [[8, 8, 8, 1.0], [64, 64, 64, 5.0]], "copy_bytes_per_s": 2.0}
    b = {"shapes": [[8, 8, 8, 4.0]], "copy_bytes_per_s": 3.0}
    assert best_peak([a, b]) == Peak(5.0, 3.0, (64, 64, 64))
    assert best_peak([]) is None
    assert best_peak([{"shapes": [[8, 8, 8, 1.0]]}]) is None


@pytest.mark.parametrize(("seconds", "void"), [(0.79, True), (0.81, False), (1.5, False)])
def test_void_under_four_fifths(seconds, void):
    assert impossible(COMPUTE, PEAK, seconds) is void


def test_between_the_peak_is_raised_and_the_row_says_so():
    raised = raise_peak(PEAK, {"fast": (COMPUTE, 0.9), "slow": (COMPUTE, 2.0)})
    assert raised.flops == pytest.approx(1e12 / 0.9) and raised.raised_by == "fast"
    fast, slow = (floor_column(COMPUTE, raised, s, row) for s, row in ((0.9, "fast"), (2.0, "slow")))
    assert fast.share == pytest.approx(1.0) and "this row" in fast.note
    assert slow.share == pytest.approx(0.45) and "fast" in slow.note
    assert raise_peak(PEAK, {"x": (TRAFFIC, 0.9)}).bytes == pytest.approx(1e11 / 0.9)


def test_an_impossible_row_raises_nothing():
    assert raise_peak(PEAK, {"void": (COMPUTE, 0.5)}) == PEAK


def test_without_a_steady_time_there_is_no_share():
    assert floor_column(COMPUTE, PEAK, None, "x").share is None


def test_a_busy_machine_keeps_a_bound():
    """Its probes may have had half of the machine, or a third; an impossible row is not ten times as fast as that."""
    busy = Peak(1e12, 1e11, (1, 1, 1), busy=True)
    assert impossible(COMPUTE, busy, 0.09) and not impossible(COMPUTE, busy, 0.11)


def test_on_a_busy_machine_no_row_raises_the_peak():
    busy = Peak(1e12, 1e11, (1, 1, 1), busy=True)
    assert raise_peak(busy, {"fast": (COMPUTE, 0.9), "absurd": (COMPUTE, 1e-6)}) == busy


def test_no_row_reaches_more_than_the_limit_of_a_machine_that_was_measured_beside_others() -> None:
    work, peak = Work(10**9, 10**6), Peak(1e11, 1e10, busy=True)
    assert floor_column(work, peak, 0.02, "a").share == pytest.approx(0.5)
    over = floor_column(work, peak, 0.004, "a")
    assert over.share is None and "the true floor is lower" in over.note
