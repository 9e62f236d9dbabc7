"""An answer to "why" as lines of text or Markdown, and as the JSON object ``detente/explain/1`` (docs/schemas.md)."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from detente.explain.answer import Answer, PartPair
from detente.explain.arm_effects import ArmEffect
from detente.explain.waterfall import Bar, Effect, Waterfall
from detente.programs.live_memory import LiveMemory
from detente.records.codec import to_json
from detente.records.verdict import MOST_BLOCKS, Verdict
from detente.report.columns import columns
from detente.report.compose import IMPORTED
from detente.report.markdown import escape
from detente.report.parts_page import coverage_line, memory_line
from detente.report.sentences import interval, times
from detente.report.text import capital, clean

SCHEMA = "detente/explain/1"
# So many parts are told in text; the page and the JSON have all of them.
SHOWN = 12


def why_lines(found: Answer, style: str) -> list[str]:
    """The answer as text or Markdown."""
    md = style == "md"
    q = found.question
    title = f"{q.workload} {q.size}, {q.contract}, {q.precision}: {q.a} and {q.b}"
    title = _escaped(title, md)
    lines = [f"# Why: {title}" if md else title, ""]
    lines += [IMPORTED, ""] if found.session.imported is not None else []
    lines += [_escaped(verdict_line(found), md), ""]
    lines += _section("Where the gap goes", md) + _waterfall(found, md)
    if found.effects:
        lines += _section("What each cause is worth by itself", md) + _table(
            ("row", "against", "step", "interval", "state"), [_effect_row(e) for e in found.effects], md
        )
        lines += [_item(note, md), ""] if (note := effects_note(found)) else []
    if found.parts:
        lines += _section("The parts that differ most", md) + _parts(found, md)
    lines += [_item(said, md) for said in found.unmatched]
    for label, why in found.missing.items():
        lines += [_escaped(f"{label} has no parts: {why}", md), ""]
    lines += _section("Differences of the programs, and what came of them", md) + _findings(found, md)
    if found.untested:
        lines += (
            _section("Not tested", md)
            + [_item(f"{k}: {why}", md) for k, why in found.untested.items()]
            + [""]
        )
    lines += [f"Session {found.session.id}. See it on your own machine: `{rerun(found)}`"]
    return [clean(line) for line in lines]


def _escaped(text: str, md: bool) -> str:
    """What may be a stranger's words."""
    return escape(text) if md else text


def verdict_line(found: Answer) -> str:
    """The verdict of the two rows in a sentence."""
    verdict, reason = found.explanation.verdict, found.explanation.reason
    if verdict is None or verdict.ratio is None:
        return f"No verdict: {reason}"
    said = {
        "FASTER": f"{verdict.a} is {times(verdict)} than {verdict.b}",
        "SLOWER": f"{verdict.a} is {times(verdict)} than {verdict.b}",
        "SAME": f"{verdict.a} and {verdict.b} take the same time",
    }.get(verdict.word, f"{verdict.a} against {verdict.b}: {verdict.word}")
    whole = [f"{said}{_interval(verdict)}.", *([_sentence(reason)] if reason else ())]
    more = max(verdict.needed or 0, 2 * verdict.blocks)
    if (verdict.needed is not None or verdict.too_noisy) and more <= MOST_BLOCKS:
        whole.append(f"A quieter machine or more processes may settle it: `--blocks {more}`.")
    if found.unproved:
        open_ = "; ".join(f"{row} ({why})" for row, why in found.unproved.items())
        whole.append(f"Not wholly proved to compute the same: {open_}.")
    whole += [
        f"In a comparison {row} is void ({why}): that is what is asked about here."
        for row, why in found.despite.items()
    ]
    return " ".join(whole)


def _interval(verdict: Verdict) -> str:
    """The interval that the word was judged by, on the scale of the sentence: of ``faster`` that of the inverse."""
    between = interval(verdict)
    if not between:
        return ""
    level = 90 if verdict.word == "SAME" else 95
    of = "" if verdict.word in ("FASTER", "SLOWER") else f"of {verdict.a}'s time over {verdict.b}'s "
    return f" ({level} % interval {of}{between})"


def rerun(found: Answer) -> str:
    """The command that repeats the answer: as it was typed, or made of what the session was asked for where that was
    something else, or is a stranger's word."""
    q, session = found.question, found.session
    first, second = (q.b, q.a) if q.swapped else (q.a, q.b)
    typed = session.command
    if (
        session.imported is None
        and typed[:2] == ("detente", "explain")
        and {q.workload, q.a, q.b} <= set(typed)
    ):
        return shlex.join(typed)
    asked = session.fingerprint.settings
    budget_s = asked.get("budget_s")
    options = {
        "size": q.size,
        "contract": q.contract,
        "precision": q.precision,
        "device": q.device,
        # Up to so many, by the looks of explain's own, where no number was asked for.
        "blocks": None if asked.get("blocks_at_most") else asked.get("blocks"),
        "budget": f"{budget_s:g}s" if isinstance(budget_s, int | float) and 0 < budget_s < math.inf else None,
        "threads": asked.get("threads"),
        "seed": asked.get("seed"),
    }
    told = [part for name, value in options.items() if value for part in (f"--{name}", str(value))]
    return shlex.join(["detente", "explain", q.workload, first, second, *told])


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
        "explained": None if e.waterfall is None or e.waterfall.by_construction else e.waterfall.explained,
        "left": None if e.waterfall is None or e.waterfall.by_construction else e.waterfall.left,
        "unproved": found.unproved,
        "causes": found.titles,
        "dropped": e.dropped,
        "despite": found.despite,
        "untested": found.untested,
        "arms": [to_json(x) for x in found.effects],
        "missing": found.missing,
        "unmatched": found.unmatched,
        "coverage": {
            side.label: {
                "operations": dict(side.table.of_operations),
                "time": dict(side.table.of_time),
                "executables": side.table.executables,
                "seconds": dict(side.seconds),
                "memory": _memory(side.live),
            }
            for side in found.sides
            if side is not None and side.table is not None
        },
        "parts": [part_document(p) for p in found.parts],
        "compared": found.compared,
        "uncompared": found.uncompared,
        "imported": found.session.imported is not None,
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
        "same": part.matched.identical if part.matched is not None else None,
    }


def _section(title: str, md: bool) -> list[str]:
    return [f"## {title}", ""] if md else [title]


def _item(text: str, md: bool) -> str:
    return f"- {escape(text)}" if md else f"  {text}"


def _sentence(text: str) -> str:
    text = capital(text)
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
        ("what is left", left, of_left, "", left_remark(fall)),
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
        _item(bars_note(fall), md),
        "",
        *_dropped(found, md),
    ]


def bars_note(fall: Waterfall) -> str:
    """At which level the intervals of a waterfall are, and what a bar below noise is below."""
    return _level_of(fall) + _noise_of(fall)


def _noise_of(fall: Waterfall) -> str:
    if not any(bar.below_noise for bar in fall.bars):
        return ""
    low, high = math.exp(-fall.noise), math.exp(fall.noise)
    return f" Below noise: not wholly beyond {low:.3f}x to {high:.3f}x, by which one row differs from itself here."


def _level_of(fall: Waterfall) -> str:
    bars = _levels(bar.effect for bar in fall.bars)
    whole = _levels((fall.gap, fall.residual))
    if len(fall.bars) < 2 or not bars:
        return f"Intervals are at {whole} %, the verdict's level." if whole else "One block has no interval."
    return (
        f"Intervals of the gap and of what is left are at {whole} %, the verdict's level; those of the bars at {bars} "
        "% each, which is as much for all of them together."
    )


def effects_note(found: Answer) -> str:
    """At which level the intervals of the arms are; empty where they have none."""
    levels = _levels(e.effect for e in found.effects if e.effect is not None)
    said = (
        f"Intervals are at {levels} % each: 95 % for all of them together, and for all looks at the session."
    )
    return said if levels else ""


def _levels(effects: Iterable[Effect]) -> str:
    """The levels of some intervals, in per cent."""
    found = {e.interval.level for e in effects if e.interval is not None}
    return " and ".join(f"{100 * level:.4g}" for level in sorted(found))


def _bar_row(title: str, bar: Bar) -> tuple[str, ...]:
    ratio, between = effect_words(bar.effect)
    low, high = (math.exp(x) for x in bar.orders)
    orders = f"{low:.3f} to {high:.3f}" if high > low else ""
    said = ", ".join(bar_remarks(bar))
    return title, ratio, between, orders, said


def bar_remarks(bar: Bar) -> tuple[str, ...]:
    """What is to be known of a bar besides its size: both may be so, where orders disagree and the mean is nothing."""
    said = {"below noise": bar.below_noise, "interaction": bar.interacts}
    return tuple(words for words, so in said.items() if so)


def left_remark(fall: Waterfall) -> str:
    """What is to be known of what is left."""
    if fall.by_construction:
        return "by construction" if len(fall.bars) > 1 else "by construction: one bar is the whole gap"
    return fall.left


def _dropped(found: Answer, md: bool) -> list[str]:
    said = [_item(f"{cause} has no bar: {why}", md) for cause, why in found.explanation.dropped.items()]
    return [*said, ""] if said else []


def _effect_row(effect: ArmEffect) -> tuple[str, ...]:
    if effect.effect is None:
        return effect.row, effect.against, "", "", f"{effect.state}: {effect.reason}"
    ratio, between = effect_words(effect.effect)
    state = f"{effect.state}: {effect.reason}" if effect.reason else effect.state
    return effect.row, effect.against, ratio, between, state


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
            return [_item(f"No rule compares their text: {found.uncompared}.", md), ""]
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
