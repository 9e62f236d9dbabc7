"""The answer as one offline HTML file: verdict, waterfall, parts, both programs side by side, findings, provenance.

All of it is in the file, the script too: nothing is fetched. Without a script everything but the two programs is there;
those open on a click, or on Enter.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from detente.explain.answer import Answer, PartPair
from detente.explain.match import match
from detente.explain.side import Side
from detente.explain.waterfall import Effect
from detente.programs.parts import Part, Site, kernels
from detente.programs.shown_operation import shown_operation
from detente.report.compose import IMPORTED
from detente.report.icicle import deepest, icicle, weight
from detente.report.memory_curve import outline, peak_words
from detente.report.numbers import BYTES, SECONDS, quantity, significant
from detente.report.page_template import template_environment, write_page
from detente.report.parts_page import coverage_line, memory_line
from detente.report.text import capital, clean
from detente.report.why_page import (
    bar_remarks,
    bars_note,
    effect_words,
    effects_note,
    left_remark,
    rerun,
    verdict_line,
)

# Lines of one part and side that are shown; a loss of a large model has no more.
_LINES = 400
_WIDTH, _ROW, _LEFT = 640, 34, 250
# Letters of 13 and of 11 pixels that fit left of the bars.
_ONE_LINE, _TWO_LINES = 36, 44
_CURVE = 90  # height of a memory curve


def write_why(found: Answer, path: Path) -> None:
    """Write the page. Raises MachineFault without Jinja2, StoreFault where the file cannot be written."""
    write_page(render_why(found), path)


def render_why(found: Answer) -> str:
    """The page as HTML."""
    q, fall = found.question, found.explanation.waterfall
    machine = found.session.fingerprint.machine
    return (
        template_environment()
        .get_template("why.html.j2")
        .render(
            css=(files("detente.report") / "templates" / "page.css").read_text(),
            question=q,
            verdict=verdict_line(found),
            proof=_proof(found),
            bars=_bars(found),
            bars_note=bars_note(fall) if fall is not None and fall.bars else "",
            effects_note=effects_note(found),
            reason=found.explanation.reason,
            width=_WIDTH,
            lines=_LINES,
            effects=[
                (e.row, e.against, *(effect_words(e.effect) if e.effect else ("", "")), e.state, e.reason)
                for e in found.effects
            ],
            labels=[s.label if s else n for s, n in zip(found.sides, (q.a, q.b), strict=True)],
            coverage=[(s.label, coverage_line(s.table), _overhead(s)) for s in found.sides if s and s.table],
            parts=_part_rows(found.parts),
            findings=[shown_finding(f) for f in found.findings],
            compared=found.compared,
            uncompared=found.uncompared,
            imported=IMPORTED if found.session.imported is not None else "",
            missing=found.missing,
            unmatched=found.unmatched,
            untested={**found.explanation.dropped, **found.untested},
            icicles=_icicles(found),
            memory=[m for s in found.sides if s is not None and (m := _memory(s))],
            curves=_curves(found),
            session=found.session,
            processor=machine.get("processor", "unknown"),
            versions=[
                (s.label, ", ".join(f"{n} {v}" for n, v in s.evidence.versions.items()))
                for s in found.sides
                if s
            ],
            rerun=rerun(found),
            data=_embedded(_programs(found)),
        )
    )


def shown_finding(finding: Any) -> dict[str, Any]:
    """A finding as the template takes it."""
    return {
        "rule": finding.rule,
        "part": f"{finding.part} {finding.direction}".strip() or "whole program",
        "what": finding.what,
        "why": capital(finding.why),
        "arm": finding.arm,
        "state": finding.state,
        "said": capital(finding.said),
        "a": finding.a,
        "b": finding.b,
    }


def _proof(found: Answer) -> str:
    """What the proofs say, where nothing is missing of them; what is missing stands beside the verdict."""
    told = found.explanation
    if told.verdict is None or found.unproved:
        return ""
    said = f"{told.a} and {told.b} are proved to compute the same"
    if found.early:
        rows = ", ".join(found.early)
        said += (
            f" in their first steps; what was timed after them was not taken again by the reference: {rows}"
        )
    return f"{said}; every arm was proved like any row."


def _overhead(side: Side) -> str:
    seconds = side.seconds
    if not seconds.get("plain"):
        return ""
    more = 100 * (seconds["profiled"] / seconds["plain"] - 1)
    busy = (
        f"; in {100 * seconds['busy'] / seconds['profiled']:.0f} % of it an operation ran"
        if "busy" in seconds
        else ""
    )
    plain, profiled = (quantity(seconds[k], SECONDS) for k in ("plain", "profiled"))
    return f"a step took {plain}, and {profiled} under the profiler ({more:+.0f} %){busy}"


def _bars(found: Answer) -> list[dict[str, Any]]:
    """The waterfall as boxes: x from 0 to the width, in log ratios."""
    fall = found.explanation.waterfall
    if fall is None or not fall.bars:
        return []
    titles = found.titles
    rows: list[tuple[str, Effect, float, str, str, tuple[str, ...]]] = []
    at = 0.0
    for bar in fall.bars:
        low, high = (math.exp(x) for x in bar.orders)
        orders = f"over the orders {low:.3f}x to {high:.3f}x" if high > low else ""
        kind = "noise" if bar.below_noise else "slower" if bar.effect.mean > 0 else "faster"
        rows.append((titles.get(bar.cause, bar.cause), bar.effect, at, kind, orders, bar_remarks(bar)))
        at += bar.effect.mean
    rows.append(("what is left", fall.residual, at, "left", "", (left_remark(fall),)))
    whole = f"{found.question.a} to {found.question.b}"
    rows.append((whole, fall.gap, 0.0, "gap", f"{fall.blocks} blocks", ()))
    ends = [x for _, e, start, *_ in rows for x in (start, start + e.mean, *_ends(e, start))]
    low, high = min(0.0, *ends), max(0.0, *ends)
    scale = (_WIDTH - _LEFT - 90) / max(high - low, 1e-9)

    def x(value: float) -> float:
        return round(_LEFT + (value - low) * scale, 1)

    drawn = []
    for k, (title, effect, start, kind, more, remarks) in enumerate(rows):
        ratio, between = effect_words(effect)
        left, right = sorted((x(start), x(start + effect.mean)))
        ends_of = _ends(effect, start)
        drawn.append(
            {
                "title": title,
                "lines": _label(title),
                "ratio": ratio,
                "between": between,
                "more": more,
                "remarks": "; ".join(filter(None, (*remarks, more))),
                "kind": kind,
                "y": k * _ROW,
                "x": left,
                "width": max(right - left, 1.5),
                "whisker": [x(e) for e in ends_of],
                "zero": x(0.0),
            }
        )
    return drawn


def _label(title: str) -> list[str]:
    """A bar's title as it stands left of the bars: in one line, or in two of smaller letters.

    >>> _label("fusion")
    ['fusion']
    """
    if len(title) <= _ONE_LINE:
        return [title]
    return textwrap.wrap(title, _TWO_LINES, max_lines=2, placeholder=" …")


def _ends(effect: Effect, start: float) -> list[float]:
    if effect.interval is None:
        return []
    return [start + effect.interval.low, start + effect.interval.high]


def _part_rows(parts: Sequence[PartPair]) -> list[dict[str, Any]]:
    """The parts with the width of their boxes: seconds where both sides know them, else operations."""
    timed = all(None not in p.seconds for p in parts) and bool(parts)
    whole = max((sum(_size(p, k, timed) for p in parts) for k in (0, 1)), default=0.0) or 1.0
    rows = []
    for k, p in enumerate(parts):
        rows.append(
            {
                "id": k,
                "path": p.aligned.path,
                "direction": p.aligned.direction,
                "operations": p.operations,
                "kernels": ["" if n is None else f"{n:.0f}" for n in p.kernels],
                "us": ["" if s is None else f"{1e6 * s:,.0f}" for s in p.seconds],
                "at_peak": ["" if not n else quantity(n, BYTES) for n in p.at_peak],
                "flops": [significant(f / 1e6) if f else "" for f in p.flops],
                "share": [round(100 * _size(p, side, timed) / whole, 2) for side in (0, 1)],
                "dice": ""
                if p.matched is None
                else f"{100 * p.matched.identical:.0f} %, {100 * p.matched.dice:.0f} %",
            }
        )
    return rows


def _size(part: PartPair, side: int, timed: bool) -> float:
    return (part.seconds[side] or 0.0) if timed else float(part.operations[side])


def _icicles(found: Answer) -> list[dict[str, Any]]:
    """Each side's parts as boxes, both to one scale: the wider one is as wide as the page."""
    sides = [s for s in found.sides if s is not None and s.table is not None]
    tables = [s.table for s in sides if s.table is not None]
    timed = bool(tables) and all(t.of_time for t in tables)
    wholes = [sum(weight(r, timed) for r in t.rows) for t in tables]
    drawn = []
    for which, (side, table, whole) in enumerate(zip(sides, tables, wholes, strict=True)):
        numbers = {
            part: k
            for k, p in enumerate(found.parts)
            for part in (p.aligned.a if side is found.sides[0] else p.aligned.b)
        }
        boxes = icicle(table, numbers, max(wholes), _WIDTH, timed)
        amount = f"{quantity(whole, SECONDS)} in kernels" if timed else f"{whole:,.0f} operations"
        drawn.append(
            {"label": side.label, "which": which, "amount": amount, "boxes": boxes, "rows": deepest(boxes)}
        )
    return drawn


def _curves(found: Answer) -> list[dict[str, Any]]:
    """Each side's live memory, both to one scale."""
    sides = [(s, s.live) for s in found.sides if s is not None and s.live is not None]
    top = max((live.peak_bytes for _, live in sides), default=0)
    drawn = []
    for side, live in sides:
        assert side.table is not None and side.compiled is not None
        drawn.append(
            {
                "label": side.label,
                "points": outline(live, top, _WIDTH, _CURVE),
                "peak": peak_words(live, kernels(side.compiled)),
                "line": memory_line(side.table, live),
            }
        )
    return drawn


def _memory(side: Side) -> dict[str, Any] | None:
    """What the compiler planned, in bytes."""
    plan = next((p.facts for p in side.evidence.programs if "argument_bytes" in p.facts), None)
    if plan is None:
        return None
    names = ("argument_bytes", "output_bytes", "temp_bytes", "alias_bytes")
    return {
        "label": side.label,
        "plan": [(n.removesuffix("_bytes"), quantity(plan[n], BYTES)) for n in names if n in plan],
    }


def _programs(found: Answer) -> list[dict[str, Any]]:
    """Both programs of each part, a line an operation, and which lines belong together and how. Of equal layers the
    first. ``pairs``: (line of A, line of B, 0 the same, 1 displaced, 2 alike); where one of the two is not shown any
    more, the other is no less its partner. ``own``: the lines of either side that have none."""
    a, b = found.sides
    if a is None or b is None:
        return []
    rows = []
    for part in found.parts:
        mine, theirs = (
            first_layers(side, parts) for side, parts in ((a, part.aligned.a), (b, part.aligned.b))
        )
        pairs: list[list[int]] = []
        own: list[list[int]] = [[], []]
        if part.matched is not None:
            matched = match(mine, theirs)
            kinds = (matched.same, matched.displaced, matched.alike)
            pairs = [[x, y, k] for k, kind in enumerate(kinds) for x, y in kind if min(x, y) < _LINES]
            own = [[x for x in side if x < _LINES] for side in (matched.only_a, matched.only_b)]
        title = clean(f"{part.aligned.path or 'update'} {part.aligned.direction}")
        rows.append({"title": title, "a": _lines(mine), "b": _lines(theirs), "pairs": pairs, "own": own})
    return rows


def first_layers(side: Side, parts: tuple[Part, ...]) -> list[Site]:
    """The operations of some parts, of equal layers those of the first. What has no parameters, all updates and layers
    that differ lie in an aligned part as well, and are no layers of one another."""
    assert side.table is not None
    mine = set(parts)
    shown = [next((m for m in row.members if m in mine), None) for row in side.table.rows]
    return side.of(tuple(part for part in shown if part is not None))


def _lines(sites: Sequence[Site]) -> list[str]:
    shown = [clean(shown_operation(s.operation, s.home)) for s in sites[:_LINES]]
    rest = len(sites) - len(shown)
    return [*shown, f"... and {rest:,} more"] if rest else shown


def _embedded(data: Any) -> str:
    """JSON that may stand in a script of a page: nothing in it ends the script."""
    return json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
