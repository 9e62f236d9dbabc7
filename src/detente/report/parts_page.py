"""A program's parts as lines of text or Markdown, and as JSON."""

from __future__ import annotations

from typing import Any

from detente.programs.live_memory import LiveMemory
from detente.programs.part_table import HOWS, PartRow, PartTable
from detente.report.columns import columns
from detente.report.numbers import BYTES, SECONDS, quantity, significant

_HEAD = ("part", "direction", "", "operations", "MFLOPs", "written", "kernels", "time", "share", "at peak")


def parts_lines(label: str, table: PartTable, style: str, live: LiveMemory | None = None) -> list[str]:
    """The table under a line that says how much of the program it knows, and one of what it holds."""
    rows = [_row(row, table) for row in table.rows]
    lines = [f"### {label}, by part" if style == "md" else f"{label}, by part", coverage_line(table)]
    if live is not None:
        lines.append(memory_line(table, live))
    gap = [""] if style == "md" else []
    return [*lines, *gap, *columns(_HEAD, rows, style, right=range(3, len(_HEAD)))]


def coverage_line(table: PartTable) -> str:
    """How much of the program has a known part, in words."""
    said = [f"of its operations {_shares(table.of_operations)}"]
    if table.executables > 1:
        first = f"a step is {table.executables} executables, and parts, times and differences are of the first alone"
        said.insert(0, first)
    if table.of_time:
        said.append(f"of {quantity(table.step_s, SECONDS)} in kernels {_shares(table.of_time)}")
        if table.shared_s:
            said.append(
                f"kernels of several parts, {100 * table.shared_s / table.step_s:.1f} %, are each counted with one: "
                "that of their largest product, or of their result"
            )
    return "; ".join(said)


def memory_line(table: PartTable, live: LiveMemory) -> str:
    """What the compiled program holds, in words."""
    made = sorted((r for r in table.rows if r.at_peak), key=lambda r: -(r.at_peak or 0))[:3]
    by = ", ".join(f"{f'{r.path} {r.direction}'.strip()} {quantity(r.at_peak, BYTES)}" for r in made)
    return (
        f"it holds {quantity(live.held, BYTES)} all the time (arguments, results, constants) and "
        f"{quantity(live.peak_bytes, BYTES)} of temporaries at most, of {quantity(live.reserved, BYTES)} set aside"
        + (f"; made by {by}" if by else "")
    )


def parts_document(table: PartTable) -> dict[str, Any]:
    """As JSON."""
    return {
        "coverage": {"operations": dict(table.of_operations), "time": dict(table.of_time)},
        "shared_s": table.shared_s,
        "step_s": table.step_s,
        "executables": table.executables,
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
                "at_peak": row.at_peak,
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
        significant(row.flops / 1e6) if row.flops else "",
        quantity(row.bytes, BYTES),
        "" if row.kernels is None else str(row.kernels),
        f"{1e6 * row.seconds:,.0f} us" if row.seconds is not None else "",
        f"{100 * row.seconds / table.step_s:.1f} %" if timed and row.seconds is not None else "",
        quantity(row.at_peak, BYTES) if row.at_peak else "",
    )
