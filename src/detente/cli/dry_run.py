"""``compare --dry-run``: the matrix, what it would cost, and what is missing."""

from __future__ import annotations

import json

from detente.cli.live import duration
from detente.records.codec import to_json
from detente.session.layout import lay_out
from detente.session.prepared import is_prepared, prepared_folder
from detente.session.request import Request

# Seconds of one process where nothing has been measured yet: a guess, and called one.
_GUESS_S = 18.0


def show_plan(request: Request, form: str) -> int:
    """Print the plan; 0."""
    layout = lay_out(request)
    runnable = layout.runnable()
    missing = [c for c in runnable if not is_prepared(prepared_folder(c, request.seed, 4), c.contract)]
    least = request.blocks or 5
    processes = least * len(runnable) + (len(runnable) if request.memory else 0)
    if form == "json":
        print(
            json.dumps(
                {
                    "schema": "detente/plan/1",
                    "cells": [to_json(c) for c in layout.cells],
                    "skipped": layout.skipped,
                    "aa": layout.aa,
                    "processes": processes,
                    "prepared": not missing,
                }
            )
        )
        return 0
    for cell in layout.cells:
        why = layout.skipped.get(cell.key)
        print(
            f"{cell.workload:8} {cell.size:6} {cell.contract.name:12} {cell.contract.precision:5} {cell.device:5} "
            f"{cell.label:22} " + (f"skipped: {why}" if why else "runs")
        )
    print(
        f"\n{least} blocks or more, {processes} processes, roughly {duration(processes * _GUESS_S)} (a guess)"
    )
    if missing:
        print("the weights and the fp64 reference are made first")
    if request.budget_s:
        print(f"no block starts that would end after {duration(request.budget_s)}")
    return 0
