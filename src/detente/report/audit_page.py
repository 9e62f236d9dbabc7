"""What the audit found in a session, row by row: lines of text, and the JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detente.records.codec import to_json
from detente.records.result import CellResult, Result

SCHEMA = "detente/audit/1"


def audit_document(result: Result) -> dict[str, Any]:
    """The JSON object, schema ``detente/audit/1`` (docs/schemas.md)."""
    return {
        "schema": SCHEMA,
        "session": result.session.id,
        "imported": result.session.imported,
        "cells": [
            {
                "cell": f"{c.group}/{c.label}",
                "status": c.status,
                "reason": c.reason,
                "findings": to_json(c.findings),
            }
            for c in result.cells
        ],
    }


def audit_lines(result: Result, everything: bool) -> Iterator[str]:
    """A head line, then a paragraph per row; ``everything``: also the rules that could not be checked."""
    s = result.session
    yield f"session {s.id}: {len(result.cells)} rows, {s.blocks} whole blocks, {s.state}"
    if s.imported is not None:
        yield "imported, not measured here: what follows is what the file says"
    for cell in result.cells:
        yield ""
        yield from _row(cell, everything)


def _row(cell: CellResult, everything: bool) -> Iterator[str]:
    told = [f for f in cell.findings if f.severity != "unchecked"]
    unchecked = [f for f in cell.findings if f.severity == "unchecked"]
    yield f"{cell.group}/{cell.label}: {cell.status}" + (f", {cell.reason}" if cell.reason else "")
    if cell.parity is not None:
        yield f"  parity: same function {cell.parity.same_function}, same precision {cell.parity.same_precision}"
    for f in told:
        yield f"  {f.severity:5} {f.rule}: {f.what}"
    if not told:
        yield "  no finding"
    for f in unchecked if everything else ():
        yield f"  not checked {f.rule}: {f.what}"
    if unchecked and not everything:
        yield f"  {len(unchecked)} rules not checked (--all lists them)"
