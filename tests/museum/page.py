"""The page of a walk through the museum, in Markdown."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
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
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {platform.machine()}, Python {platform.python_version()}.",
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


def _said(row: Seen) -> str:
    return ", ".join(f"{rule} ({severity})" for rule, severity in sorted(row.found.items())) or "clean"
