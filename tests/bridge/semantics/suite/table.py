"""All cases, in the order of the table."""

from __future__ import annotations

from suite import control, draws, faults, layers, numbers, regions, writes
from suite.case import Case

CASES: tuple[Case, ...] = (
    *regions.CASES,
    *writes.CASES,
    *control.CASES,
    *draws.CASES,
    *faults.CASES,
    *numbers.CASES,
    *layers.CASES,
)
BY_NAME: dict[str, Case] = {case.name: case for case in CASES}
if len(BY_NAME) != len(CASES):
    raise ValueError("two cases of one name")
