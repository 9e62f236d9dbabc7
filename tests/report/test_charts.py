"""Every chart is drawn from whatever a session may hold, in the page's own colours, for both widths."""

from __future__ import annotations

import re

import pytest

from detente.report.charts import _ratio_ticks, draw
from detente.report.page import Chart, Mark

ODD = {
    "one": (Mark("jax", 1.0, label="1.00 s"),),
    "equal": (Mark("a", 1.0, 1.0, 1.0), Mark("b", 1.0, 1.0, 1.0)),
    "far apart": (Mark("a", 1e-9, 1e-10, 1e-8, "first"), Mark("b", 1e6, 1.0, 1e9, "second")),
    "no interval": (Mark("a", 0.7), Mark("b", 1.3, None, None, "x")),
    "long names": (
        Mark("path/to/a/very/long/file/name.py:TheNameOfTheClass" * 3, 2.0, 1.0, 3.0, "s", "bad", "2.00 s"),
    ),
    "many": tuple(Mark(f"row {i}", 1 + i / 10, 1.0, 2 + i / 10, "s", "warn") for i in range(25)),
    "markup": (Mark("<script>alert(1)</script>&\"'", 1.0, 0.9, 1.1, "<b>", "good", "</svg><img>"),),
}


@pytest.mark.parametrize("kind", ["ratios", "intervals", "runs", "bars", "shares"])
@pytest.mark.parametrize("marks", ODD.values(), ids=ODD)
def test_whatever_is_in_it_is_drawn(kind, marks):
    drawing = draw(Chart(kind, "A <title>", marks, 0.041 if kind == "ratios" else None))
    for svg in (drawing.wide, drawing.narrow):
        assert svg.startswith('<svg role="img" aria-label="A &lt;title&gt;')
        assert "NaN" not in svg and "#010a0" not in svg
        assert not re.search(r"<(script|b|img)\b", svg)
        assert "var(--" in svg


def test_a_margin_beyond_all_reason():
    assert "NaN" not in draw(Chart("ratios", "t", ODD["equal"], 190_000.0)).wide


def test_narrow_is_narrower():
    drawing = draw(Chart("intervals", "t", ODD["many"]))
    wide, narrow = (float(re.search(r'width="([\d.]+)"', s).group(1)) for s in (drawing.wide, drawing.narrow))
    assert narrow < 380 < wide < 1000


@pytest.mark.parametrize(
    ("low", "high"), [(0.012, 1.03), (0.9, 1.1), (0.5, 40.0), (1e-5, 1.02), (0.97, 1e4), (0.2, 0.99)]
)
def test_ticks_stand_where_the_data_is(low, high):
    for most in (7, 4):
        ticks = [t for t in _ratio_ticks(low, high, most) if low <= t <= high]
        assert len(ticks) >= 2 and len(ticks) <= most + 1, ticks
        # On both halves of the logarithmic axis, not all at the large end.
        middle = (low * high) ** 0.5
        assert min(ticks) < middle < max(ticks), ticks


def test_pair_names_are_below_one_another_where_it_is_narrow():
    mark = Mark("torch-compile / torch-eager", 0.8, 0.7, 0.9)
    drawing = draw(Chart("ratios", "t", (mark,), 0.02))
    assert "torch-compile / torch-eager</text>" in drawing.wide
    assert "torch-compile / torch-eager</text>" not in drawing.narrow
    assert "torch-eager</" in drawing.narrow and "…" not in drawing.narrow
