"""Which optimised program this process runs: another process may have tuned itself into another one."""

from __future__ import annotations

from typing import Any

from detente.programs.count import count_program
from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``executable``. Absent on a CPU, where no compiler times kernels by default and asking costs a second of
    every process, and for a stack that gives no optimised program away."""
    if opened.platform == "cpu":
        return {}
    for capture in opened.captures:
        if capture.form == "hlo-optimised":
            return {"executable": {"hash": count_program(capture.data, capture.form).hash}}
    return {}
