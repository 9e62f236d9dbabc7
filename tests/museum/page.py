"""The page of a walk through the museum, in Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from detente.judge.rules import RULES
from detente.judge.rules.planting import planting


class Seen(NamedTuple):
    """One row of one session. ``rule`` is empty for a fair row, ``wrong`` where all is well."""

    room: str
    name: str
    condition: str
    rule: str
    wrong: str
    found: Mapping[str, str]
    day: str = ""
    processor: str = ""


def keep(file: Path, seen: Sequence[Seen]) -> None:
    """At the end of the file: what was seen is kept, whatever comes after it."""
    with file.open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row._asdict(), sort_keys=True) + "\n" for row in seen)


def newest(file: Path) -> list[Seen]:
    """The newest look at each row of each room under each condition."""
    found: dict[tuple[str, str, str], Seen] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        row = Seen(**json.loads(line))
        found[row.room, row.name, row.condition] = row
    return list(found.values())


def page(seen: Sequence[Seen]) -> str:
    """Counts first, then every row with what the audit said of it under each condition."""
    conditions = list(dict.fromkeys(row.condition for row in seen))
    kinds = Counter(planting(code) for code in RULES)
    lines = [
        "# The museum of unfair benchmarks",
        "",
        "Written by `make museum`, which plants each pitfall in a small benchmark, runs it through the real worker and "
        "the real judge",
        "beside fair rows, once quiet and once while a neighbour computes on the other core. Exhibits and fair rows: "
        "`tests/museum/`.",
        "",
        f"{_between(r.day for r in seen)}; {', '.join(sorted({r.processor for r in seen}))}. Each row as it was seen "
        "last; every look is a line of museum.jsonl.",
        "",
    ]
    for condition in conditions:
        exhibits = [r for r in seen if r.condition == condition and r.rule]
        fair = [r for r in seen if r.condition == condition and not r.rule]
        lines.append(
            f"- {condition}: {sum(not r.wrong for r in exhibits)} of {len(exhibits)} exhibits caught, "
            f"{sum(not r.wrong for r in fair)} of {len(fair)} fair rows not void."
        )
    lines += [
        f"- Of {len(RULES)} rules {kinds['live']} are planted live, {kinds['simulated']} simulated (made-up records), "
        f"{kinds['not checked']} are not checked.",
        "",
    ]
    for title, wanted in (("Exhibits", True), ("Fair rows", False)):
        head = ["room", "row", *(["rule that must say so"] if wanted else []), *conditions]
        lines += [f"## {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        rows = {(r.room, r.name): r for r in seen if bool(r.rule) == wanted}
        for (room, name), row in rows.items():
            cells = [room, name, *([row.rule] if wanted else [])]
            for condition in conditions:
                one = next(
                    (r for r in seen if (r.room, r.name, r.condition) == (room, name, condition)), None
                )
                cells.append("–" if one is None else f"**{one.wrong}**" if one.wrong else _said(one))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _between(days: Iterable[str]) -> str:
    found = sorted(set(days))
    return found[0] if found[:1] == found[-1:] else f"{found[0]} to {found[-1]}"


def _said(row: Seen) -> str:
    return ", ".join(f"{rule} ({severity})" for rule, severity in sorted(row.found.items())) or "clean"
