"""Three significant digits, a unit, and an interval whose ends can be told apart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detente.report.numbers import (
    BYTES,
    FLOPS,
    SECONDS,
    count,
    duration,
    margin,
    percent,
    plain_span,
    quantity,
    seconds,
    significant,
    span,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (1.0, "1.00"),
        (0.99961, "1.00"),
        (9.996, "10.0"),
        (1234.0, "1230"),
        (0.000123, "0.000123"),
        (1.2e-7, "1.20e-07"),
        (-4.5, "-4.50"),
        (math.nan, "not a number"),
        (math.inf, "∞"),
    ],
)
def test_significant(value, text):
    assert significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0427, "42.7 ms"),
        (0.9996, "1.00 s"),
        (0.99944, "999 ms"),
        (125.0, "125 s"),
        (471.3, "7.86 min"),
        (4e-7, "400 ns"),
        (0.0, "0 ns"),
        (None, "–"),
    ],
)
def test_seconds(value, text):
    assert seconds(value) == text


def test_other_units():
    assert quantity(2.15e9, BYTES) == "2.15 GB"
    assert quantity(0, BYTES) == "0 B"
    assert quantity(9.52e10, FLOPS, "/s") == "95.2 GFLOP/s"
    assert percent(0.4123) == "41.2 %" and percent(None) == "–"
    assert [margin(x) for x in (0.02, 0.0412, 0.1, 7.5)] == ["2 %", "4.1 %", "10 %", "a factor of 8.50"]
    assert (count(1, "process", "processes"), count(5, "block")) == ("1 process", "5 blocks")
    assert [duration(x) for x in (0.4, 59.6, 471.3, 3600, 3720)] == [
        "0 s",
        "1 min",
        "7 min 51 s",
        "1 h",
        "1 h 2 min",
    ]


def test_the_ends_of_an_interval_stand_in_the_unit_of_its_middle():
    assert span(1.0, 0.998, 1.004, SECONDS) == "0.998 to 1.004"
    assert span(0.0427, 0.0421, 0.0434, SECONDS) == "42.1 to 43.4"
    assert span(1.0, 0.00251, 190743.9, SECONDS) == "0.00251 to 191000"
    assert span(0.0427, None, None, SECONDS) == ""


@given(st.floats(1e-3, 1e3), st.floats(1.00011, 3.0))
def test_ends_that_differ_print_differently(low, factor):
    first, last = plain_span(low, low * factor).split(" to ")
    assert float(first) < float(last)


@given(st.floats(1.0, 1.5).filter(lambda x: x > 1.0))
def test_an_end_beyond_one_never_prints_as_below_it(high):
    assert float(plain_span(0.95, high).split(" to ")[1]) >= 1.0


@given(st.floats(1e-9, 1e5))
def test_a_printed_duration_is_right_to_half_a_percent(value):
    number, unit = seconds(value).split()
    size = next(s.size for s in SECONDS if s.unit == unit)
    assert float(number) * size == pytest.approx(value, rel=5.1e-3)
