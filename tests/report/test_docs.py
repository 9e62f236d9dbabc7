"""The guide shows what the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import fabricated as f
import pytest

from detente.report.terminal import render_text

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to-read-the-output.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL), ids=lambda b: b.split()[0])
def test_every_example_is_printed(block):
    assert block in render_text(f.whole(), full=True)


def test_every_column_and_word_is_explained():
    text = render_text(f.whole())
    head = next(line for line in text.splitlines() if line.startswith("  stack"))
    for name in re.split(r"\s{2,}", head.strip())[1:]:
        assert f"| {name} |" in GUIDE, name
    for word in ("SAME", "SLOWER", "FASTER", "UNDECIDED", "LEANS", "VOID", "CHANGED", "NO CHANGE SEEN"):
        assert word in GUIDE
