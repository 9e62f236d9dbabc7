"""What the figures depend on: the machine, the versions, the settings, and the command that makes them
again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detente.records.result import Result
from detente.report.numbers import BYTES, quantity, significant
from detente.report.page import Command, Facts, Part, Section


def machine_section(result: Result) -> Section:
    """Machine, versions, settings and the exact command."""
    head = result.session
    parts: list[Part] = [Facts(tuple(flat(head.fingerprint.machine)))]
    versions = _versions(result)
    if versions:
        parts.append(Section("Versions", (Facts(versions),), detail=True))
    if head.peaks:
        parts.append(Section("Measured peaks", (Facts(tuple(flat(head.peaks))),), detail=True))
    settings = tuple(flat(head.fingerprint.settings))
    if settings:
        source = (
            (("source of détente, SHA-256", head.fingerprint.source[:16]),) if head.fingerprint.source else ()
        )
        parts.append(Section("Settings", (Facts((*settings, *source)),), detail=True))
    parts.append(Section("Run it again", (Command(head.rerun or " ".join(head.command)),)))
    return Section("Machine", tuple(parts))


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as names and plain words: lists joined, absent values left out."""
    found = []
    for name, value in values.items():
        key = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            found.extend(flat(value, f"{key}: "))
        elif isinstance(value, list | tuple):
            if value:
                said = [
                    ", ".join(f"{k} {v}" for k, v in x.items()) if isinstance(x, Mapping) else str(x)
                    for x in value
                ]
                found.append((key, "; ".join(said)))
        elif value is not None and value != "":
            found.append(_fact(key, value))
    return found


def _fact(key: str, value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        return key, "yes" if value else "no"
    if key.endswith(" bytes") and isinstance(value, int | float):
        return key.removesuffix(" bytes"), quantity(value, BYTES)
    if isinstance(value, float):
        return key, significant(value)
    return key, str(value)


def _versions(result: Result) -> tuple[tuple[str, str], ...]:
    """Distribution and version; where stacks differ in one, each version names its stacks."""
    by: dict[str, dict[str, list[str]]] = {}
    for c in result.cells:
        for name, version in c.versions.items():
            by.setdefault(name, {}).setdefault(version, []).append(c.label)
    return tuple(
        (
            name,
            next(iter(v)) if len(v) == 1 else "; ".join(f"{x} ({', '.join(rows)})" for x, rows in v.items()),
        )
        for name, v in sorted(by.items())
    )
