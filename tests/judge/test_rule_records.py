"""The records of the rules, and the pages that are made of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from detente.judge.rules import ALIASES, RULES, find_rule
from detente.judge.rules.pages import all_pages, main, rule_page, stale_pages
from detente.judge.rules.planting import LIVE, counts, planting
from detente.records.fault import UsageFault

DOCS = Path(__file__).resolve().parents[2] / "docs" / "rules"


def test_every_pitfall_has_a_rule():
    """36 pitfalls of published comparisons, one of them twice, and what strangers planted here."""
    assert set(ALIASES) == {"P2b", *(f"P{n}" for n in range(1, 53))}
    assert len(RULES) == 53


@pytest.mark.parametrize("code", RULES)
def test_a_record_is_whole(code):
    rule = RULES[code]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    for text in (rule.title, rule.what, rule.why, rule.detected, rule.fix, rule.waive, rule.example):
        assert text.strip() == text and len(text) >= 5
    for sentence in (rule.what, rule.why, rule.detected, rule.fix, rule.waive):
        assert sentence[-1] in ".:)", (code, sentence)
    assert rule.evidence
    assert (rule.check is None) == bool(rule.unchecked)


def test_rules_are_found_by_code_and_by_number():
    assert find_rule("graph-break") is find_rule("P13") is find_rule("p13")


@pytest.mark.parametrize(
    ("typed", "near"), [("clock-stop-early", "clock-stops-early"), ("graph-breaks", "graph-break")]
)
def test_an_unknown_rule_names_the_nearest(typed, near):
    with pytest.raises(UsageFault, match=f"did you mean '{near}'") as caught:
        find_rule(typed)
    assert caught.value.exit_code == 2 and caught.value.hint


def test_pages_in_the_docs_are_up_to_date():
    assert stale_pages(DOCS) == [], "run: python -m detente.judge.rules.pages docs/rules"


def test_a_changed_missing_or_foreign_page_is_told_and_mended(tmp_path, capsys):
    assert main([str(tmp_path)]) == 0
    (tmp_path / "graph-break.md").write_text("edited by hand")
    (tmp_path / "recompiles.md").unlink()
    (tmp_path / "no-such-rule.md").write_text("left over")
    expected = ["graph-break.md", "no-such-rule.md", "recompiles.md"]
    assert stale_pages(tmp_path) == expected
    capsys.readouterr()
    assert main([str(tmp_path), "--check"]) == 1
    assert [Path(line.split(": ")[1]).name for line in capsys.readouterr().out.splitlines()] == expected
    assert main([str(tmp_path)]) == 0 and main([str(tmp_path), "--check"]) == 0
    assert main([]) == 2


def test_a_page_holds_its_record():
    page = rule_page("P30")
    rule = find_rule("P30")
    for text in (rule.title, rule.what, rule.why, rule.detected, rule.fix, rule.waive, rule.example):
        assert text in page
    assert "Not checked" in rule_page("P25")
    assert all(f"]({code}.md)" in all_pages()["README.md"] for code in RULES)


def test_readme_counts_the_rules_as_the_command_does():
    """`python -m detente.judge.rules.planting` prints the sentence; README once said of 37 rules that every one must be
    caught, and 14 of them were tried."""
    readme = (DOCS.parents[1] / "README.md").read_text(encoding="utf-8")
    assert counts() in " ".join(readme.split())
    assert counts() in all_pages()["README.md"]


def test_a_page_says_how_its_rule_is_tried():
    tried = {
        "live": "Planted **live**",
        "simulated": "Planted **simulated**",
        "not checked": "**Not checked**",
    }
    for code in RULES:
        assert tried[planting(code)] in rule_page(code)
    assert RULES.keys() >= LIVE
