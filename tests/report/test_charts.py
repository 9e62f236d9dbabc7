"""Every chart is drawn from whatever a session may hold, in the page's own colours, for both widths."""

from __future__ import annotations

import re

import pytest

from detente.report.charts import draw
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
