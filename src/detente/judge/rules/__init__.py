"""The audit rules: a table of frozen records, one file per family."""

from __future__ import annotations

import difflib

from detente.judge.rules import clock, computed, hardware, harness, memory, numerics, warmup, window
from detente.judge.rules.rule import Rule
from detente.records.fault import UsageFault

RULES: dict[str, Rule] = {
    rule.code: rule
    for family in (clock, window, numerics, computed, warmup, hardware, memory, harness)
    for rule in family.RULES
}
ALIASES: dict[str, str] = {rule.alias: rule.code for rule in RULES.values()}


def find_rule(name: str) -> Rule:
    """The rule called ``name``: its code, or its number as ``P1`` or ``p1``.

    Raises UsageFault with the nearest code when there is none.

    >>> find_rule("P16").code
    'compile-in-window'
    """
    if name in RULES:
        return RULES[name]
    number = {alias.lower(): code for alias, code in ALIASES.items()}.get(name.lower())
    if number:
        return RULES[number]
    near = difflib.get_close_matches(name.lower(), [*RULES, *ALIASES], n=1, cutoff=0.4)
    raise UsageFault(
        f"no rule is called {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        f"there are {len(RULES)}, from {next(iter(RULES))!r} (P1) on; `detente rule` lists them",
    )
