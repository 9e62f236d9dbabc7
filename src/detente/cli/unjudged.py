"""What can be told where nothing but the core is installed: medians, and how to have the session judged."""

from __future__ import annotations

import json
import statistics

from detente.cli.stored import IMPORTED
from detente.cli.text import say
from detente.records.codec import to_json
from detente.records.folders import data_folder
from detente.records.sample import process_median
from detente.records.session import Session


def tell_unjudged(session: Session, form: str) -> int:
    """Print one line per row (or one JSON object) and the file that another machine can judge."""
    rows = []
    for cell in session.planned:
        done = session.of(cell)
        medians = [
            median
            for p in done
            if p.evidence.status == "ok" and (median := process_median(p.evidence.samples)) is not None
        ]
        why = session.skipped.get(cell.key) or next(
            (p.evidence.reason for p in done if p.evidence.status != "ok"), ""
        )
        rows.append((cell, statistics.median(medians) if medians else None, len(medians), why))
    spool = data_folder() / "sessions" / f"{session.id}.jsonl"
    if form == "json":
        print(
            json.dumps(
                {
                    "schema": "detente/unjudged/1",
                    "session": session.id,
                    "imported": session.imported,
                    "spool": str(spool),
                    "cells": [
                        {"cell": to_json(c), "steady_s": m, "processes": n, "reason": why}
                        for c, m, n, why in rows
                    ],
                }
            )
        )
    else:
        for cell, median, n, why in rows:
            shown = f"{median * 1e3:.4g} ms per step, {n} processes" if median is not None else why
            say(f"{cell.workload:8} {cell.size:6} {cell.label:22} {shown}")
        if session.imported is not None:
            say(f"{IMPORTED}: the figures are what the file says")
        print("\nNot judged: scipy is not installed here, so nothing above says which is faster.")
    say(f"judge it elsewhere: detente import {spool}", error=True)
    if session.note == "interrupted":
        return 130
    return 0
