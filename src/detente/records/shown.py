"""A result in an interactive session: a few lines, two tables, or a data frame. The whole page is the report's."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from detente.records.fault import MachineFault

if TYPE_CHECKING:
    from detente.records.result import CellResult, Result
    from detente.records.verdict import Verdict

_HEAD = ("row", "status", "s per step", "first step, s", "processes", "reason")


def as_text(result: Result) -> str:
    """The session, then a line for each row and each pair."""
    head = result.session
    lines = [f"<Result of session {head.id}: {head.state}, {head.blocks} blocks"]
    lines += [f"  {_named(c)}: {', '.join(x for x in _figures(c) if x)}" for c in result.cells]
    lines += [f"  {v.a} : {v.b}: {_verdict(v)}" for v in result.verdicts]
    return "\n".join(lines) + ">"


def as_html(result: Result) -> str:
    """Two tables without a style of their own. Every text is escaped: a label or a reason is a stranger's."""
    head = result.session
    rows = [
        (
            _named(c),
            c.status,
            _seconds(c.steady_s.median if c.steady_s and c.status == "ok" else None),
            _seconds(c.first_s if c.status == "ok" else None),
            str(c.steady_s.processes) if c.steady_s else "",
            c.reason,
        )
        for c in result.cells
    ]
    pairs = [(f"{v.a} : {v.b}", _verdict(v), str(v.blocks), v.reason) for v in result.verdicts]
    told = f"session {head.id}: {head.state}, {head.blocks} blocks"
    return (
        f"<p>{html.escape(told)}</p>"
        + _table(_HEAD, rows)
        + _table(("pair", "verdict", "blocks", "why"), pairs)
    )


def as_dataframe(result: Result) -> Any:
    """One row per cell. Times are seconds, memory is bytes by its label; a figure that is not there is None."""
    try:
        import pandas  # type: ignore[import-not-found]
    except ImportError:
        raise MachineFault(
            "to_dataframe needs pandas, which is not installed", "pip install pandas"
        ) from None
    return pandas.DataFrame([as_record(c) for c in result.cells])


def as_record(cell: CellResult) -> dict[str, Any]:
    """The figures of a row, flat."""
    steady = cell.steady_s if cell.status == "ok" else None
    return {
        **{
            k: getattr(cell, k)
            for k in ("workload", "size", "stack", "label", "contract", "precision", "device")
        },
        **{
            k: getattr(cell, k)
            for k in ("status", "reason", "import_s", "build_s", "first_s", "second_s", "third_s")
        },
        "steady_s": steady.median if steady else None,
        "steady_low_s": steady.low if steady else None,
        "steady_high_s": steady.high if steady else None,
        "processes": steady.processes if steady else 0,
        **{f"memory_{label}": size for label, size in cell.memory.items()},
    }


def _named(cell: CellResult) -> str:
    return f"{cell.workload} {cell.size} {cell.label}"


def _figures(cell: CellResult) -> tuple[str, ...]:
    if cell.status != "ok" or cell.steady_s is None:
        return cell.status, cell.reason
    first = f"first {cell.first_s:.3g} s" if cell.first_s is not None else ""
    return (
        f"{cell.steady_s.median:.3g} s per step",
        first,
        f"{cell.steady_s.processes} processes",
        cell.reason,
    )


def _verdict(verdict: Verdict) -> str:
    """Only a decided pair has a ratio to show."""
    if verdict.word not in ("FASTER", "SLOWER") or not verdict.ratio:
        return verdict.word
    return f"{verdict.word} {max(verdict.ratio, 1 / verdict.ratio):.3g}x"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(x)}</{tag}>" for x in cells) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(r, "td") for r in rows) + "</table>"
