"""The audit rules: a table of frozen records, one file per family."""

from __future__ import annotations

from detente.judge.rules import (
    clock,
    computed,
    covering,
    hardware,
    harness,
    memory,
    numerics,
    remembered,
    warmup,
    window,
)
from detente.judge.rules.rule import Rule
from detente.records.fault import UsageFault
from detente.records.nearest import did_you_mean

RULES: dict[str, Rule] = {
    rule.code: rule
    for family in (
        clock,
        window,
        covering,
        remembered,
        numerics,
        computed,
        warmup,
        hardware,
        memory,
        harness,
    )
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
    raise UsageFault(
        f"no rule is called {name!r}" + did_you_mean(name.lower(), [*RULES, *ALIASES]),
        f"there are {len(RULES)}, from {next(iter(RULES))!r} (P1) on; `detente rule` lists them",
    )
