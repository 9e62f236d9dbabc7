"""The page in a terminal: the same characters with and without colour, in every width."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace

import fabricated as f
import pytest
from golden import assert_golden
from hypothesis import given, settings
from hypothesis import strategies as st

from detente.report.page import Chart, Mark, Page
from detente.report.terminal import render_page, render_text, wants_colour, width_of
from detente.report.text import cells_wide, clean

RESULTS = {
    "whole": f.whole,
    "drifting": f.drifting,
    "undecided": f.undecided,
    "two_groups": f.two_groups,
    "empty": f.empty,
}


@pytest.mark.parametrize("name", RESULTS)
def test_golden(name):
    assert_golden(render_text(RESULTS[name](), full=name == "whole"), f"report_{name}.txt")


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("name", RESULTS)
def test_no_line_is_wider_than_the_terminal(name, width):
    result = RESULTS[name]()
    for line in render_text(result, width=width, full=True).splitlines():
        # The command is there to be copied, and a long word cannot be broken.
        if result.session.rerun not in line:
            assert cells_wide(line) <= width or " " not in line.strip()


def test_colour_changes_no_character():
    pytest.importorskip("rich")
    plain = render_text(f.whole(), full=True)
    coloured = render_text(f.whole(), full=True, colour=True)
    assert "\x1b[" in coloured and "\x1b" not in plain
    assert [x.rstrip() for x in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()] == plain.splitlines()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colour_only_where_it_is_wanted():
    assert wants_colour(Terminal(), {"TERM": "xterm"})
    assert not wants_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert wants_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": ""})
    assert not wants_colour(Terminal(), {"TERM": "dumb"})
    assert not wants_colour(io.StringIO(), {"TERM": "xterm"})
    assert width_of(io.StringIO()) == 100


def test_a_reason_cannot_steer_the_terminal():
    assert clean("a\x1b[31mred\x1b[0m\x1b]0;title\x07 \x9bword\nline\x00") == "ared  word line "
    assert "\x1b" not in render_text(f.whole())


@pytest.mark.parametrize("make", [f.whole, f.two_groups])
def test_no_ratio_for_what_is_void_and_no_time_for_it_either(make):
    text = render_text(make(), full=True)
    for line in text.splitlines():
        if line.strip().startswith("mine.py:Mine "):
            assert not re.search(r"\d (ms|s)\b|\dx (faster|slower)", line), line


def test_a_drifting_session_shows_no_ratio_anywhere():
    text = render_text(f.drifting(), full=True)
    assert not re.search(r"\dx (faster|slower)|% (faster|slower)|within [\d.]+ %", text)
    assert "Pairs" not in text and "●" not in text


def test_every_planned_row_stays_with_its_reason():
    text = render_text(f.whole())
    for c in f.whole().cells:
        assert re.search(rf"^  {re.escape(c.label)} ", text, re.MULTILINE)
        if c.status != "ok" and c.label != "other.py:Other":
            assert " ".join(c.reason.split()) in " ".join(text.split())


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=25, deadline=None)
@given(TEXTS, TEXTS, st.integers(60, 140))
def test_any_text_in_any_place_is_laid_out(label, reason, width):
    good = f.whole()
    cells = (*good.cells, replace(good.cells[-1], label=label or "x", reason=reason))
    text = render_text(replace(good, cells=cells), width=width, full=True)
    assert all(c.isprintable() or c == "\n" for c in text)


def test_ratios_far_apart_have_places_of_their_own():
    """On a straight axis from 0.05 to 9 twice as fast, twenty times as fast and the same time are one cell."""
    marks = tuple(Mark(f"{x}", x, x / 1.01, x * 1.01) for x in (0.05, 0.1, 0.5, 9.0))
    page = Page("t", "t", (Chart("ratios", "t", marks, 0.02),))
    drawn = [line for line in render_page(page).splitlines() if "●" in line]
    places = [line.index("●") for line in drawn]
    assert len(drawn) == 4 and all(b - a > 4 for a, b in itertools.pairwise(places))
    assert all(line.index("│") - places[2] > 4 for line in drawn if "│" in line)
