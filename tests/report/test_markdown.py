"""The page as Markdown: tables that stay tables, text that stays text."""

from __future__ import annotations

from dataclasses import replace

import fabricated as f
from golden import assert_golden

from detente.report.markdown import render_markdown


def test_golden():
    assert_golden(render_markdown(f.whole()), "report_whole.md")
    assert_golden(render_markdown(f.two_groups()), "report_two_groups.md")


def test_every_row_of_a_table_has_as_many_cells_as_its_head():
    good = f.whole()
    odd = replace(good.cells[-1], label="a|b", reason="x | y | `p | q`")
    lines = render_markdown(replace(good, cells=(*good.cells, odd))).splitlines()
    width = 0
    for line in lines:
        bars = line.replace("\\|", "").count("|") if line.startswith("|") else 0
        assert not (bars and width) or bars == width, line
        width = bars


def test_markup_in_a_reason_is_text():
    good = f.whole()
    bad = replace(good.cells[-1], reason="<img src=x onerror=alert(1)> **bold** [link](http://x) # head")
    text = render_markdown(replace(good, cells=(bad,)))
    assert "\\<img src=x onerror=alert(1)\\> \\*\\*bold\\*\\* \\[link\\](http://x) \\# head" in text


def test_a_command_cannot_leave_its_fence():
    good = f.whole()
    session = replace(good.session, rerun="detente compare 'a```b'")
    assert "````console\ndetente compare 'a```b'\n````" in render_markdown(replace(good, session=session))
