"""A finding: what the audit says of a cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["void", "warn", "unchecked"]


@dataclass(frozen=True)
class Finding:
    """``unchecked`` means that the evidence for this rule is missing; it is printed as "not checked", never as fine."""

    rule: str
    severity: Severity
    cell: str
    what: str
    evidence: dict[str, Any] = field(default_factory=dict)
