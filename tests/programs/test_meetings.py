"""Pairs that meet in a convolution: counted by hand, and far beyond what could be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detente.programs.meetings import meetings
from detente.programs.module import ProgramError, Spatial

extents, steps = st.integers(0, 12), st.integers(1, 5)


def by_hand(s: Spatial) -> int:
    last = (s.input - 1) * s.base_dilation
    places = (
        out * s.stride + tap * s.window_dilation - s.low for tap in range(s.size) for out in range(s.output)
    )
    return sum(0 <= at <= last and at % s.base_dilation == 0 for at in places)


@settings(max_examples=600, deadline=None)
@given(extents, extents, extents, steps, st.integers(-6, 14), steps, steps)
def test_the_closed_form_is_what_is_counted_one_by_one(
    size: int, width: int, out: int, stride: int, low: int, window: int, base: int
) -> None:
    s = Spatial(size, width, out, stride, low, window, base)
    assert meetings(s) == by_hand(s)


def test_a_convolution_as_long_as_its_input() -> None:
    """Hyena's: every output sees what lies before it."""
    n = 1 << 20
    assert meetings(Spatial(n, n, n, low=n - 1)) == n * (n + 1) // 2


def test_any_size_that_a_file_claims_is_counted() -> None:
    """Once a window of 2 to the 40th was walked tap by tap."""
    n = 1 << 40
    assert meetings(Spatial(n, 4, n)) == 10
    assert meetings(Spatial(n, n, n, stride=2, window_dilation=3)) == by_thirds(n)


def by_thirds(n: int) -> int:
    """How many (t, o) there are with 3 t + 2 o < n: for each t the half of what is left, rounded up."""
    last = (n - 1) // 3
    even, odd = last // 2 + 1, (last + 1) // 2
    # For t = 2 k it is (n + 1) // 2 - 3 k, for t = 2 k + 1 it is (n - 2) // 2 - 3 k.
    return (
        even * ((n + 1) // 2) - 3 * even * (even - 1) // 2 + odd * ((n - 2) // 2) - 3 * odd * (odd - 1) // 2
    )


@pytest.mark.parametrize("broken", [{"stride": 0}, {"window_dilation": -1}, {"base_dilation": 0}])
def test_a_step_that_is_none_is_refused(broken: dict[str, int]) -> None:
    with pytest.raises(ProgramError, match="each is 1 or more"):
        meetings(Spatial(3, 8, 8, **broken))


def test_strides_that_nobody_has_are_refused() -> None:
    n, wide = 1 << 40, (1 << 21) + 1
    with pytest.raises(ProgramError, match="none that anybody runs"):
        meetings(Spatial(n, n, n, stride=wide + 2, window_dilation=wide, base_dilation=wide + 4))
