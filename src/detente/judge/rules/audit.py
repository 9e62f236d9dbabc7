"""The audit: every rule over every row of a group. Missing evidence becomes a finding of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from detente.judge.floor import impossible
from detente.judge.rules import RULES
from detente.judge.rules.rule import Group, Row, Rule
from detente.records.finding import Finding

_TWICE = " of two processes"


def audit(group: Group, rules: Iterable[Rule] = RULES.values()) -> tuple[Finding, ...]:
    """Every finding of a group, in the order of the rules: ``void``, ``warn``, and ``unchecked`` where evidence is
    missing. Rows without a single good process are left out: their status says why."""
    found: list[Finding] = []
    rows = tuple(row for row in group.rows if row.fine)
    for rule in rules:
        asked = tuple(row for row in rows if rule.applies(row))
        if rule.check is None:
            found += (_unchecked(rule, row, rule.unchecked) for row in asked)
            continue
        ready = []
        for row in asked:
            missing = [key for key in rule.evidence if not _there(key, row, group)]
            if missing:
                why = _why(missing, row, group)
                found.append(_unchecked(rule, row, why))
            else:
                ready.append(row)
                lacks = [key for key in rule.partly if not _there(key, row, group)]
                if lacks:
                    found.append(_unchecked(rule, row, f"in part: {_why(lacks, row, group)}"))
        for hit in rule.check(replace(group, rows=tuple(ready))) if ready else ():
            severity = hit.severity or rule.severity
            found.append(Finding(rule.code, severity, hit.row.cell.key, hit.what, hit.evidence))
    return tuple(found)


def _there(key: str, row: Row, group: Group) -> bool:
    if key == "floor":
        return (
            group.work is not None and group.peak is not None and (not group.peak.busy or _absurd(row, group))
        )
    if key.endswith(_TWICE):
        return len(row.every(key.removesuffix(_TWICE))) > 1
    if key == "memory process":
        return any(p.kind == "memory" for p in row.others)
    # `a|b`: either will do.
    return any(row.has(one) for one in key.split("|"))


def _absurd(row: Row, group: Group) -> bool:
    """So far below the floor that no neighbour explains it, whoever used the machine while its peaks were measured."""
    return (
        row.steady is not None
        and group.work is not None
        and group.peak is not None
        and impossible(group.work, group.peak, row.steady)
    )


def _why(missing: list[str], row: Row, group: Group) -> str:
    if all(key.startswith("program") for key in missing) and row.compiled == "none":
        return "an eager stack gives no program away"
    if missing == ["floor"] and group.work is None:
        return "nobody stated how much work a step of this model is"
    if missing == ["floor"] and group.peak is not None and group.peak.busy:
        return "others used the machine while its peaks were measured"
    errors = "; ".join(filter(None, (row.broken(key) for key in missing)))
    return f"no evidence: {', '.join(missing)}" + (f" (the probe failed: {errors})" if errors else "")


def _unchecked(rule: Rule, row: Row, why: str) -> Finding:
    return Finding(rule.code, "unchecked", row.cell.key, f"not checked: {why}")
