"""The code of one part of several stacks, side by side as text, or one below the other as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

# A column of a terminal's line; two of them are as wide as most terminals.
WIDTH = 76
_FORMS = {
    "hlo": "HLO, as it was handed to the compiler",
    "operators": "operators, as they were dispatched or handed to Inductor",
    "hlo-optimised": "HLO, optimised: what runs",
    "inductor": "what Inductor wrote",
}


def code_lines(part: str, found: Sequence[tuple[str, Mapping[str, Sequence[str]]]], style: str) -> list[str]:
    """``found``: each row's label with its lines by form of the program (explain/part_code.py)."""
    lines = [f"## {part}" if style == "md" else f"{part}:"]
    for label, code in found:
        if not code:
            lines.append(f"{label}: no part of its program is called that; `--parts` lists them")
    having = [(label, code) for label, code in found if code]
    if style == "md":
        for label, code in having:
            for form, text in code.items():
                lines += ["", f"### {label}: {_FORMS[form]}", "", "```", *text, "```"]
        return lines
    for at in range(0, len(having), 2):
        lines += _beside(*having[at : at + 2]) if at + 1 < len(having) else _alone(*having[at])
    return lines


def _alone(label: str, code: Mapping[str, Sequence[str]]) -> list[str]:
    return [line for form, text in code.items() for line in ("", f"{label}: {_FORMS[form]}", *text)]


def _beside(
    one: tuple[str, Mapping[str, Sequence[str]]], other: tuple[str, Mapping[str, Sequence[str]]]
) -> list[str]:
    """Both, form by form: what was handed over beside what was handed over, what runs beside what runs."""
    lines = []
    forms = [list(code.items()) for _, code in (one, other)]
    for left, right in zip_longest(*forms):
        columns = [
            [] if pair is None else [f"{label}: {_FORMS[pair[0]]}", *pair[1]]
            for label, pair in ((one[0], left), (other[0], right))
        ]
        lines.append("")
        lines += [f"{_cut(a or ''):<{WIDTH}}  {_cut(b or '')}".rstrip() for a, b in zip_longest(*columns)]
    return lines


def _cut(line: str) -> str:
    line = line.expandtabs(4)
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
