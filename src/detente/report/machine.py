"""What the figures depend on: the machine, the versions, the settings, and the command that makes them
again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from detente.records.result import Result
from detente.report.numbers import BYTES, FLOPS, quantity, significant
from detente.report.page import Command, Facts, Part, Section, Statement, words

_UNTRUSTED = Statement(
    words("Its author wrote that line, not this machine: read it before you run it."), "warn"
)


def machine_section(result: Result) -> Section:
    """Machine, versions, settings and the exact command."""
    head = result.session
    parts: list[Part] = [Facts(tuple(flat(head.fingerprint.machine)))]
    versions = _versions(result)
    if versions:
        parts.append(Section("Versions", (Facts(versions),), detail=True))
    if head.peaks:
        parts.append(Section("Measured peaks", (Facts(tuple(flat(head.peaks))),), detail=True))
    # The costs of the workloads are in there too, so that a session can be judged anywhere; the floor tells
    # them.
    settings = tuple(flat({k: v for k, v in head.fingerprint.settings.items() if k != "workloads"}))
    if settings:
        source = (
            (("source of détente, SHA-256", head.fingerprint.source[:16]),) if head.fingerprint.source else ()
        )
        parts.append(Section("Settings", (Facts((*settings, *source)),), detail=True))
    command = head.rerun or " ".join(head.command)
    parts.append(
        Section("Run it again", (Command(command),))
        if head.imported is None
        # A file may say anything here. It is shown, so that it can be judged, and not set as something to copy.
        else Section(
            "The file says that this made it", (Statement(words(f"“{command}”"), "quiet"), _UNTRUSTED)
        )
    )
    return Section("Machine", tuple(parts))


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as names and plain words: lists joined, absent values left out."""
    found = []
    for name, value in values.items():
        key = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            found.extend(flat(value, f"{key}: "))
        elif isinstance(value, list | tuple):
            if value and all(isinstance(x, int) for x in value):
                found.append((key, " x ".join(map(str, value))))
            elif value:
                said = [
                    ", ".join(f"{k} {v}" for k, v in x.items()) if isinstance(x, Mapping) else str(x)
                    for x in value
                ]
                found.append((key, "; ".join(said)))
        elif value is not None and value != "":
            found.append(_fact(key, value))
    return found


# The end of a name -> how its number is written.
_UNITS: dict[str, Callable[[float], str]] = {
    " flops per s": lambda x: quantity(x, FLOPS, "/s"),
    " bytes per s": lambda x: quantity(x, BYTES, "/s"),
    " flops": lambda x: quantity(x, FLOPS),
    " bytes": lambda x: quantity(x, BYTES),
    " gib": lambda x: f"{significant(x)} GiB",
    " s": lambda x: f"{x:g} s",
}
_NAMES = {
    " flops per s": " product rate",
    " bytes per s": " copy rate",
    " flops": " work",
    " bytes": " traffic",
}


def _fact(key: str, value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        return key, "yes" if value else "no"
    if isinstance(value, int | float):
        end = next((e for e in _UNITS if key.endswith(e)), None)
        if end is not None:
            name = key.removesuffix(end)
            return name + (_NAMES.get(end, "") if name.endswith(":") else ""), _UNITS[end](value)
        return key, f"{value:g}" if isinstance(value, float) else str(value)
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
