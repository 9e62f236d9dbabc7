"""History as text: the newest change first, no ratio across fingerprints."""

from __future__ import annotations

import random

from golden import assert_golden

from detente.report.history_page import render_history
from detente.report.html import html_page
from detente.store.history import Point, Series
from detente.store.unpaired import Change, compare_unpaired

CELL = "gpt2/paper/train-step/fp32/cpu/jax"


def points(last: float = 1.2) -> tuple[Point, ...]:
    random_ = random.Random(5)

    def medians(centre: float) -> tuple[float, ...]:
        return tuple(centre * random_.lognormvariate(0, 0.004) for _ in range(10))

    a, b, c, d = medians(1.0), medians(1.001), medians(0.7), medians(last)
    old, new = {"jax": "0.10.1"}, {"jax": "0.10.2"}
    other = Change("NOT COMPARABLE", "machine.cores (2 to 64) changed: a trend, not a verdict")
    return (
        Point("s1", 1.79e9, a, old),
        Point("s2", 1.791e9, b, old, compare_unpaired(a, b), "s1"),
        Point("s3", 1.792e9, c, old, other, "s2"),
        Point("s4", 1.793e9, d, new, compare_unpaired(b, d), "s2", ("jax 0.10.1 to 0.10.2",)),
    )


def test_golden():
    assert_golden(render_history((Series(CELL, points()),), width=120), "history.txt")


def test_the_newest_session_leads():
    assert "Changed in the newest session: jax 1.20x slower." in render_history((Series(CELL, points()),))
    assert "No change seen in 1 row" in render_history((Series(CELL, points(1.0)),))
    assert "Nothing to compare with" in render_history((Series(CELL, points()[:1]),))
    assert "Nothing is stored" in render_history(())


def test_a_trend_across_machines_shows_no_ratio():
    line = next(
        x for x in render_history((Series(CELL, points()),), width=140).splitlines() if " s3 " in f" {x} "
    )
    assert "NOT COMPARABLE" in line and "0.7" not in line.split("NOT COMPARABLE")[1]


def test_it_is_a_page_like_any_other():
    from detente.report.history_page import compose_history

    assert "NOT COMPARABLE" in html_page(compose_history((Series(CELL, points()),)))
