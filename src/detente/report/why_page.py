"""An answer to "why" as lines of text or Markdown, and as the JSON object ``detente/explain/1`` (docs/schemas.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from detente.explain.answer import Answer, PartPair
from detente.explain.arm_effects import ArmEffect
from detente.explain.waterfall import Bar, Effect
from detente.programs.live_memory import LiveMemory
from detente.records.codec import to_json
from detente.report.columns import columns
from detente.report.parts_page import coverage_line, memory_line

SCHEMA = "detente/explain/1"
# So many parts are told in text; the page and the JSON have all of them.
SHOWN = 12


def why_lines(found: Answer, style: str) -> list[str]:
    """The answer as text or Markdown."""
    md = style == "md"
    q = found.question
    title = f"{q.workload} {q.size}, {q.contract}, {q.precision}: {q.a} and {q.b}"
    lines = [f"# Why: {title}" if md else title, ""]
    lines += [verdict_line(found), ""]
    lines += _section("Where the gap goes", md) + _waterfall(found, md)
    if found.effects:
        lines += _section("What each cause is worth by itself", md) + _table(
            ("row", "against", "step", "interval", "state"), [_effect_row(e) for e in found.effects], md
        )
    if found.parts:
        lines += _section("The parts that differ most", md) + _parts(found, md)
    for label, why in found.missing.items():
        lines += [f"{label} has no parts: {why}", ""]
    lines += _section("Differences of the programs, and what came of them", md) + _findings(found, md)
    if found.untested:
        lines += (
            _section("Not tested", md)
            + [_item(f"{k}: {why}", md) for k, why in found.untested.items()]
            + [""]
        )
    lines += [f"Session {found.session.id}. See it on your own machine: `{rerun(found)}`"]
    return lines


def verdict_line(found: Answer) -> str:
    """The verdict of the two rows in a sentence."""
    verdict, reason = found.explanation.verdict, found.explanation.reason
    if verdict is None or verdict.ratio is None:
        return f"No verdict: {reason}"
    said = {
        "FASTER": f"{verdict.a} is {_times(1 / verdict.ratio)} faster than {verdict.b}",
        "SLOWER": f"{verdict.a} is {_times(verdict.ratio)} slower than {verdict.b}",
        "SAME": f"{verdict.a} and {verdict.b} take the same time",
    }.get(verdict.word, f"{verdict.a} against {verdict.b}: {verdict.word}")
    interval = f" (95 % interval of the ratio {verdict.low:.3f} to {verdict.high:.3f})" if verdict.low else ""
    whole = [f"{said}{interval}.", *([_sentence(reason)] if reason else ())]
    whole += [
        f"In a comparison {row} is void ({why}): that is what is asked about here."
        for row, why in found.despite.items()
    ]
    return " ".join(whole)


def rerun(found: Answer) -> str:
    """The command that repeats the answer."""
    q = found.question
    first, second = (q.b, q.a) if q.swapped else (q.a, q.b)
    return (
        f"detente explain {q.workload} {first} {second} --size {q.size} --contract {q.contract} "
        f"--precision {q.precision}"
    )


def why_document(found: Answer) -> dict[str, Any]:
    """The JSON object, without its schema's name."""
    q, e = found.question, found.explanation
    return {
        "question": to_json(q),
        "session": found.session.id,
        "processor": found.session.fingerprint.machine.get("processor", ""),
        "verdict": to_json(e.verdict) if e.verdict is not None else None,
        "reason": e.reason,
        "waterfall": to_json(e.waterfall) if e.waterfall is not None else None,
        "explained": e.waterfall.explained if e.waterfall is not None else None,
        "causes": found.titles,
        "dropped": e.dropped,
        "despite": found.despite,
        "untested": found.untested,
        "arms": [to_json(x) for x in found.effects],
        "missing": found.missing,
        "coverage": {
            side.label: {
                "operations": dict(side.table.of_operations),
                "time": dict(side.table.of_time),
                "seconds": dict(side.seconds),
                "memory": _memory(side.live),
            }
            for side in found.sides
            if side is not None and side.table is not None
        },
        "parts": [part_document(p) for p in found.parts],
        "compared": found.compared,
        "findings": [to_json(f) for f in found.findings],
        "rerun": rerun(found),
    }


def _memory(live: LiveMemory | None) -> dict[str, Any] | None:
    if live is None:
        return None
    peak = {"bytes": live.peak_bytes, "operation": live.operations[live.peak] if live.operations else ""}
    return {"held": live.held, "reserved": live.reserved, "peak": peak, "temporary": live.temporary}


def part_document(part: PartPair) -> dict[str, Any]:
    """An aligned part as JSON."""
    return {
        "path": part.aligned.path,
        "direction": part.aligned.direction,
        "a": sorted({p.path for p in part.aligned.a}),
        "b": sorted({p.path for p in part.aligned.b}),
        "operations": part.operations,
        "flops": part.flops,
        "kernels": part.kernels,
        "seconds": part.seconds,
        "at_peak": part.at_peak,
        "dice": part.matched.dice if part.matched is not None else None,
    }


def _section(title: str, md: bool) -> list[str]:
    return [f"## {title}", ""] if md else [title]


def _item(text: str, md: bool) -> str:
    return f"- {text}" if md else f"  {text}"


def _times(ratio: float) -> str:
    return f"{ratio:.3g}x" if ratio < 1.95 or ratio > 9.95 else f"{ratio:.2f}x"


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def effect_words(effect: Effect) -> tuple[str, str]:
    """(ratio, interval) of an effect, as a step's time over what it was."""
    interval = effect.interval
    between = "" if interval is None else f"{math.exp(interval.low):.3f} to {math.exp(interval.high):.3f}"
    return f"{effect.ratio:.3f}x", between


def _waterfall(found: Answer, md: bool) -> list[str]:
    fall = found.explanation.waterfall
    titles = found.titles
    if fall is None or not fall.bars:
        why = found.explanation.reason or "there is nothing between these two that can be switched"
        return [_item(f"No bars: {why}.", md), *_dropped(found, md), ""]
    rows = [_bar_row(titles.get(b.cause, b.cause), b) for b in fall.bars]
    left, of_left = effect_words(fall.residual)
    whole, of_whole = effect_words(fall.gap)
    rows += [
        ("what is left", left, of_left, "", "explained" if fall.explained else "not explained"),
        (
            f"the whole gap, {found.question.a} to {found.question.b}",
            whole,
            of_whole,
            "",
            f"{fall.blocks} blocks",
        ),
    ]
    return [
        *_table(("cause, switched from A to B", "step", "interval", "over orders", ""), rows, md),
        *_dropped(found, md),
    ]


def _bar_row(title: str, bar: Bar) -> tuple[str, ...]:
    ratio, between = effect_words(bar.effect)
    low, high = (math.exp(x) for x in bar.orders)
    orders = f"{low:.3f} to {high:.3f}" if high > low else ""
    said = "below noise" if bar.below_noise else "interaction" if bar.interacts else ""
    return title, ratio, between, orders, said


def _dropped(found: Answer, md: bool) -> list[str]:
    said = [_item(f"{cause} has no bar: {why}", md) for cause, why in found.explanation.dropped.items()]
    return [*said, ""] if said else []


def _effect_row(effect: ArmEffect) -> tuple[str, ...]:
    if effect.effect is None:
        return effect.row, effect.against, "", "", f"{effect.state}: {effect.reason}"
    ratio, between = effect_words(effect.effect)
    return effect.row, effect.against, ratio, between, effect.state


def _parts(found: Answer, md: bool) -> list[str]:
    a, b = found.sides
    assert a is not None and b is not None and a.table is not None and b.table is not None
    lines = []
    for side in (a, b):
        assert side.table is not None
        held = f"; {memory_line(side.table, side.live)}" if side.live is not None else ""
        lines.append(_item(f"{side.label}: {coverage_line(side.table)}{held}", md))
    ordered = sorted(found.parts, key=_weight, reverse=True)[:SHOWN]
    head = ("part", "direction", "operations", "kernels", f"{a.label}, us", f"{b.label}, us")
    rows = [
        (
            p.aligned.path,
            p.aligned.direction,
            f"{p.operations[0]:,} / {p.operations[1]:,}",
            " / ".join("?" if k is None else f"{k:.0f}" for k in p.kernels),
            *("" if s is None else f"{1e6 * s:,.0f}" for s in p.seconds),
        )
        for p in ordered
    ]
    rest = len(found.parts) - len(ordered)
    more = [_item(f"and {rest} more, in the page and in `--format json`", md)] if rest > 0 else []
    note = _item(
        "Times are those of kernels under a profiler, threads added up, in a process of their own: they say where to "
        "look, and are no bar.",
        md,
    )
    return [*lines, "", *_table(head, rows, md), *more, note, ""]


def _weight(part: PartPair) -> float:
    """How much a part matters: how far its times lie apart; without times, its operations."""
    a, b = part.seconds
    if a is not None and b is not None:
        return abs(a - b)
    return (a or b or 0.0) + 1e-9 * abs(part.operations[0] - part.operations[1])


def _findings(found: Answer, md: bool) -> list[str]:
    if not found.findings:
        if found.compared is None:
            return [
                _item(
                    "The two do not hand over programs of one kind, so that no rule compares their text.", md
                ),
                "",
            ]
        return [_item("None.", md), ""]
    rows = [
        (
            f.state,
            f.rule,
            f"{f.part} {f.direction}".strip() or "whole program",
            f.what,
            f.said,
        )
        for f in _grouped(found.findings)
    ]
    assert found.compared is not None
    first = _item(f"{found.compared[0]} is the first of each two, {found.compared[1]} the second.", md)
    return [first, "", *_table(("state", "rule", "part", "what differs", "its arm"), rows, md)]


def _grouped(findings: Sequence[Any]) -> list[Any]:
    """Measured ones first, then rejected, then untested; each in the order of the program."""
    order = {"measured": 0, "rejected": 1, "untested": 2}
    return sorted(findings, key=lambda f: order[f.state])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], md: bool) -> list[str]:
    return [*columns(head, rows, "md" if md else "text", indent="  "), ""]
