"""The programs of several stacks side by side: tables of counts as text and Markdown, and the JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detente.programs.difference import Section, side_by_side
from detente.programs.part_table import PartTable
from detente.records.codec import to_json
from detente.records.counts import Counts
from detente.report.columns import columns
from detente.report.parts_page import parts_document
from detente.session.capturing import Captured

SCHEMA = "detente/programs/1"
TITLES = {
    "operators": "Operators of PyTorch: what eager dispatches, or the graphs that Inductor is given",
    "hlo": "HLO, before optimisation: what the compiler is given (like with like)",
    "stablehlo": "StableHLO, as each stack prints it (torch_xla canonicalises and folds constants while it prints)",
    "hlo-optimised": "HLO, optimised: what runs, fusions opened",
}


def program_document(
    captured: tuple[Captured, ...],
    counted: list[dict[str, Counts]],
    divided: Sequence[PartTable | None] = (),
) -> dict[str, Any]:
    """The JSON object, schema ``detente/programs/1`` (docs/schemas.md)."""
    cell = captured[0].cell
    return {
        "workload": cell.workload,
        "size": cell.size,
        "contract": cell.contract.name,
        "precision": cell.contract.precision,
        "device": cell.device,
        "stacks": [
            {
                "stack": one.cell.stack,
                "label": one.cell.label,
                "status": one.evidence.status,
                "reason": one.evidence.reason,
                "versions": one.evidence.versions,
                "programs": [
                    {**to_json(p), "counts": to_json(counts[p.form]) if p.form in counts else None}
                    for p in one.evidence.programs
                ],
                "parts": parts_document(told) if told is not None else None,
            }
            for one, counts, told in zip(captured, counted, divided or (None,) * len(captured), strict=True)
        ],
    }


def program_tables(
    captured: tuple[Captured, ...], counted: list[dict[str, Counts]], forms: tuple[str, ...], style: str
) -> list[str]:
    """The tables as lines of text or Markdown, one table per form, a column per stack that has a program."""
    cell = captured[0].cell
    lines = [f"{cell.workload} {cell.size}, {cell.contract.name}, {cell.contract.precision}, {cell.device}"]
    if style == "md":
        lines[0] = f"## {lines[0]}"
    for one, counts in zip(captured, counted, strict=True):
        if one.evidence.status != "ok":
            lines.append(f"{one.cell.label}: {one.evidence.status}: {one.evidence.reason}")
        elif not counts:
            lines.append(f"{one.cell.label}: gives no program away that can be counted")
        else:
            lines.append(
                f"{one.cell.label}: {', '.join(f'{n} {v}' for n, v in one.evidence.versions.items())}"
            )
    for form in forms:
        having = [(o.cell.label, c[form]) for o, c in zip(captured, counted, strict=True) if form in c]
        if having:
            lines += ["", f"### {TITLES[form]}" if style == "md" else TITLES[form]]
            lines += table([label for label, _ in having], side_by_side([c for _, c in having]), style)
    return lines


def table(labels: list[str], sections: tuple[Section, ...], style: str) -> list[str]:
    """Columns of right-aligned numbers under the stacks' labels."""
    rows: list[tuple[str, ...]] = []
    for section in sections:
        if section.title:
            rows.append((f"**{section.title}**" if style == "md" else section.title,) + ("",) * len(labels))
        indent = "  " if section.title and style != "md" else ""
        rows += [(indent + label, *(_number(v) for v in values)) for label, values in section.rows]
    gap = [""] if style == "md" else []
    return [*gap, *columns(("", *labels), rows, style, right=range(1, len(labels) + 1))]


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
