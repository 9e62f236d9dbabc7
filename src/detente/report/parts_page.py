"""A program's parts as lines of text or Markdown, and as JSON."""

from __future__ import annotations

from typing import Any

from detente.programs.part_table import HOWS, PartRow, PartTable

_HEAD = ("part", "direction", "", "operations", "MFLOPs", "written", "kernels", "time", "share")


def parts_lines(label: str, table: PartTable, style: str) -> list[str]:
    """The table under a line that says how much of the program it knows."""
    rows = [_row(row, table) for row in table.rows]
    lines = [f"### {label}, by part" if style == "md" else f"{label}, by part", coverage_line(table)]
    if style == "md":
        return [*lines, "", *_markdown(rows)]
    widths = [max(len(row[k]) for row in (_HEAD, *rows)) for k in range(len(_HEAD))]
    for row in (_HEAD, *rows):
        cells = [
            c.ljust(w) if k < 3 else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def coverage_line(table: PartTable) -> str:
    """How much of the program has a known part, in words."""
    said = [f"of its operations {_shares(table.of_operations)}"]
    if table.of_time:
        said.append(f"of {1e3 * table.step_s:.3g} ms of thread time {_shares(table.of_time)}")
        if table.shared_s:
            said.append(
                f"kernels of several parts, {100 * table.shared_s / table.step_s:.1f} %, are counted with their "
                "result's"
            )
    return "; ".join(said)


def parts_document(table: PartTable) -> dict[str, Any]:
    """As JSON."""
    return {
        "coverage": {"operations": dict(table.of_operations), "time": dict(table.of_time)},
        "shared_s": table.shared_s,
        "step_s": table.step_s,
        "rows": [
            {
                "path": row.path,
                "direction": row.direction,
                "times": row.times,
                "operations": row.operations,
                "flops": row.flops,
                "bytes": row.bytes,
                "dtypes": dict(row.dtypes),
                "kernels": row.kernels,
                "seconds": row.seconds,
            }
            for row in table.rows
        ],
    }


def _shares(known: Any) -> str:
    words = {"name": "by name", "flow": "by dataflow", "guess": "guessed", "none": "unknown"}
    return ", ".join(f"{100 * known[how]:.1f} % {words[how]}" for how in HOWS if known[how] or how == "name")


def _row(row: PartRow, table: PartTable) -> tuple[str, ...]:
    timed = row.seconds is not None and table.step_s
    return (
        row.path or "(none)",
        row.direction,
        f"x{row.times}" if row.times > 1 else "",
        f"{row.operations:,}",
        f"{row.flops / 1e6:,.3g}" if row.flops else "",
        _bytes(row.bytes),
        "" if row.kernels is None else str(row.kernels),
        f"{1e6 * row.seconds:,.0f} us" if row.seconds is not None else "",
        f"{100 * row.seconds / table.step_s:.1f} %" if timed and row.seconds is not None else "",
    )


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _markdown(rows: list[tuple[str, ...]]) -> list[str]:
    head = ["| " + " | ".join(_HEAD) + " |", "| --- | --- | --- |" + " ---: |" * (len(_HEAD) - 3)]
    return [*head, *("| " + " | ".join(row) + " |" for row in rows)]
