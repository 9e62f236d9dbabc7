"""What the table does not do, or does differently: every row is checked, and a row that no longer fails is an error.

``match`` is a regular expression that the failure must contain, so that another failure is not excused by it.
``every`` says that every sample of the operator fails; other rows excuse only the samples that match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gap:
    ops: tuple[str, ...]
    match: str
    reason: str
    every: bool = False
    dtypes: tuple[str, ...] = ("float64", "bfloat16", "int64", "bool", "complex128")

    def excuses(self, problem: str) -> bool:
        return re.search(self.match, problem) is not None


GAPS: tuple[Gap, ...] = ()


def gaps_of(op: str, dtype: str) -> list[Gap]:
    """The rows for this operator and dtype."""
    return [gap for gap in GAPS if op in gap.ops and dtype in gap.dtypes]
