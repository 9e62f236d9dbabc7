"""The audit's lines: every row, its findings, and what could not be checked."""

from __future__ import annotations

import json
from dataclasses import replace

import fabricated as f

from detente.records.finding import Finding
from detente.report.audit_page import audit_document, audit_lines

FINDINGS = (
    Finding("clock-stops-early", "void", "", "the clock stopped 3 ms early"),
    Finding("threads-differ", "unchecked", "", "no probe told"),
)


def result():
    whole = f.whole()
    first, *rest = whole.cells
    return replace(whole, cells=(replace(first, status="void", reason="P1", findings=FINDINGS), *rest))


def test_a_row_says_what_was_found_and_how_much_was_not_checked() -> None:
    lines = list(audit_lines(result(), everything=False))
    first = result().cells[0]
    assert lines[0].startswith(f"session {result().session.id}: {len(result().cells)} rows")
    at = lines.index(f"{first.group}/{first.label}: void, P1")
    assert "  void  clock-stops-early: the clock stopped 3 ms early" in lines[at:]
    assert "  1 rules not checked (--all lists them)" in lines[at:]
    assert not any("no probe told" in line for line in lines)
    assert sum(not line for line in lines) == len(result().cells), "a paragraph per row"


def test_everything_lists_what_was_not_checked() -> None:
    assert "  not checked threads-differ: no probe told" in list(audit_lines(result(), everything=True))


def test_the_document_has_every_row_and_finding() -> None:
    told = json.loads(json.dumps(audit_document(result())))
    assert [c["status"] for c in told["cells"]] == [c.status for c in result().cells]
    assert [x["rule"] for x in told["cells"][0]["findings"]] == ["clock-stops-early", "threads-differ"]
