"""What the audit would find in a row under an arm, and is what the arm is for: a state that is not donated is a fault
of a stack, and the purpose of ``donation=off``. Everything else is found in such a row as in any."""

from __future__ import annotations

from collections.abc import Iterable

from detente.records.arm import Arm

# Factor -> the rules whose findings are its purpose. Of a step in several programs, the program that is asked holds the
# gradients alone: it neither returns new state nor takes state over.
MEANT: dict[str, frozenset[str]] = {
    "donation": frozenset({"state-not-donated"}),
    "optimizer": frozenset({"optimizer-outside", "graph-break", "state-not-donated"}),
}


def rules_of(factors: Iterable[str]) -> frozenset[str]:
    """What the audit finds in a row that lacks these factors.

    >>> sorted(rules_of(["donation"]))
    ['state-not-donated']
    """
    return frozenset(rule for factor in factors for rule in MEANT.get(factor, ()))


def is_meant(arm: Arm, rule: str) -> bool:
    """Whether what this rule finds is what the arm is for.

    >>> from detente.records.arm import arm_of
    >>> is_meant(arm_of({"donation": "off"}), "state-not-donated")
    True
    """
    return rule in rules_of(arm.factors)
