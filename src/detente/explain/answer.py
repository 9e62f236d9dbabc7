"""The answer to a question: the verdict, the waterfall, what each arm is worth, and the two programs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from detente.explain.align import Aligned, Match, align, unmatched
from detente.explain.arm_effects import ArmEffect, arm_effects
from detente.explain.difference_rules import Pair
from detente.explain.findings import Finding, find, settled
from detente.explain.match import Matched, match
from detente.explain.pair import Explanation, explain_pair, open_still
from detente.explain.question import Question, of_explained
from detente.explain.rows import Rows, group_of, label_of, plain_captures, rows_of
from detente.explain.side import Side
from detente.programs.module import ProgramError
from detente.programs.part_table import PartTable
from detente.programs.parts import Part
from detente.records.session import Session


@dataclass(frozen=True)
class PartPair:
    """An aligned part with both sides' figures, of a step: operations, kernels, seconds and bytes at the memory peak
    (None where they are not known), and how the operations match, where both are HLO."""

    aligned: Aligned
    operations: tuple[int, int]
    flops: tuple[int, int]
    kernels: tuple[float | None, float | None]
    seconds: tuple[float | None, float | None]
    at_peak: tuple[float | None, float | None] = (None, None)
    matched: Matched | None = None


@dataclass(frozen=True)
class Answer:
    """``sides``: A's and B's program, None where one could not be captured (``missing`` says why). ``untested``: cause
    -> why it was not switched. ``compared``: the rows whose programs' text the findings are of, None where no rule
    compares it (``uncompared``: why); from PyTorch to JAX the first is the bridge, which runs A's program on XLA.
    ``despite``: row -> why it is void in a comparison, where that is what the question is about. ``unmatched``: what
    was to belong together and is not there, in words. ``unproved``: row with figures -> what is missing of its proof;
    ``early``: rows that are proved in their first steps alone."""

    question: Question
    session: Session
    explanation: Explanation
    effects: tuple[ArmEffect, ...]
    sides: tuple[Side | None, Side | None]
    missing: dict[str, str]
    parts: tuple[PartPair, ...]
    findings: tuple[Finding, ...]
    untested: dict[str, str] = field(default_factory=dict)
    compared: tuple[str, str] | None = None
    despite: dict[str, str] = field(default_factory=dict)
    uncompared: str = ""
    unmatched: tuple[str, ...] = ()
    unproved: dict[str, str] = field(default_factory=dict)
    early: tuple[str, ...] = ()

    @property
    def titles(self) -> dict[str, str]:
        """Cause -> what its bar is called: with it what was to be switched before it, and has no bar."""
        path, fall = self.question.path, self.explanation.waterfall
        seen = {bar.cause for bar in fall.bars} if fall is not None else {c.code for c in path.causes}
        held = {c.before: c.title for c in path.causes if c.code not in seen}
        return {c.code: c.title + (f"; {held[c.code]}" if c.code in held else "") for c in path.causes}


def question_open(question: Question, session: Session) -> bool:
    """Whether the gap that is asked about is not settled by ``session``, and more blocks of it may settle it."""
    return open_still(_rows(session, group_of(session, question), question), question.path)


def _rows(session: Session, group: str, question: Question) -> Rows:
    return rows_of(session, group, question.a, question.lacks, _asked_alone(session, question))


def answer(
    question: Question,
    session: Session,
    artefacts: Path,
    untested: dict[str, str] | None = None,
    by_hand: Sequence[Match] = (),
) -> Answer:
    """What a session says to a question. Raises UsageFault for a session that holds nothing of these two rows."""
    group = group_of(session, question)
    rows = _rows(session, group, question)
    explanation = explain_pair(rows, question.path)
    effects = arm_effects(rows)
    missing: dict[str, str] = {}
    a, b = (_side(session, group, stack, artefacts, missing) for stack in (question.a, question.b))
    parts: tuple[PartPair, ...] = ()
    findings: tuple[Finding, ...] = ()
    compared: tuple[str, str] | None = None
    uncompared = "; ".join(f"{stack}: {why}" for stack, why in missing.items())
    missed: tuple[str, ...] = ()
    if a is not None and b is not None:
        parts, pairs = _aligned(a, b, by_hand)
        missed = _missed(a, b, by_hand)
        text, absent = a, dict[str, str]()
        if a.form != "hlo" and question.path.stand_in:
            text = _side(session, group, question.path.stand_in, artefacts, absent) or a
            pairs = _aligned(text, b, by_hand)[1]
        uncompared = "; ".join(
            (
                "the two hand over programs of different kinds",
                *(f"{stack}, which would stand between them: {why}" for stack, why in absent.items()),
            )
        )
        if text.form == b.form == "hlo":
            compared = (text.label, b.label)
        # What the budget left out is why a difference was not tested, before that its row is not there.
        why = replace(explanation, dropped={**explanation.dropped, **(untested or {})})
        findings = settled(find(text, b, pairs), effects, why, "" if text is a else a.label)
    return Answer(
        question,
        session,
        explanation,
        effects,
        (a, b),
        missing,
        parts,
        findings,
        dict(untested or {}),
        compared,
        {label_of(row): why for row, why in rows.despite.items()},
        "" if compared is not None else uncompared,
        missed,
        {label_of(row): why for row, why in rows.unproved.items()},
        tuple(sorted(map(label_of, rows.early))),
    )


def _asked_alone(session: Session, question: Question) -> bool:
    """Whether a session was measured for this pair: then no other was looked at, and it is one comparison."""
    asked = of_explained(session)
    return asked is not None and {asked.a, asked.b} == {question.a, question.b}


def _side(session: Session, group: str, stack: str, artefacts: Path, missing: dict[str, str]) -> Side | None:
    ran = [p for p in plain_captures(session, group) if p.cell.stack == stack]
    if not ran:
        missing[stack] = "no program of it was captured in this session"
        return None
    evidence = ran[-1].evidence
    if evidence.status != "ok":
        missing[stack] = f"its capture is {evidence.status}: {evidence.reason}"
        return None
    side = Side(ran[-1].cell.label, evidence, artefacts)
    try:
        if side.table is None:
            missing[stack] = "it gives no program away that can be divided into parts"
            return None
    except OSError as error:
        missing[stack] = f"its program is not there any more: {error.strerror or error}"
        return None
    except ProgramError as error:
        missing[stack] = f"its program cannot be read: {error}"
        return None
    return side


def _aligned(a: Side, b: Side, by_hand: Sequence[Match]) -> tuple[tuple[PartPair, ...], list[Pair]]:
    assert a.table is not None and b.table is not None
    rows_a, rows_b = _members(a.table), _members(b.table)
    found = align(rows_a, rows_b, a.anchors, b.anchors, by_hand)
    both_hlo = a.form == b.form == "hlo"
    parts, pairs = [], []
    for one in found:
        mine, theirs = a.of(one.a), b.of(one.b)
        pairs.append(Pair(one, mine, theirs))
        matched = match(mine, theirs) if both_hlo else None
        parts.append(
            PartPair(
                one,
                (sum(s.runs for s in mine), sum(s.runs for s in theirs)),
                (_sum(a.table, one.a, "flops"), _sum(b.table, one.b, "flops")),
                (_known(a.table, one.a, "kernels"), _known(b.table, one.b, "kernels")),
                (_known(a.table, one.a, "seconds"), _known(b.table, one.b, "seconds")),
                (_known(a.table, one.a, "at_peak"), _known(b.table, one.b, "at_peak")),
                matched,
            )
        )
    return tuple(parts), pairs


def _missed(a: Side, b: Side, by_hand: Sequence[Match]) -> tuple[str, ...]:
    assert a.table is not None and b.table is not None
    label = {"a": a.label, "b": b.label}
    found = unmatched(_members(a.table), _members(b.table), by_hand)
    return tuple(f"{label[side]} has no part {path!r}, which --align names" for side, path in found)


def _members(table: PartTable) -> list[Part]:
    return [part for row in table.rows for part in row.members]


def _share(table: PartTable, parts: tuple[Part, ...], figure: str) -> list[tuple[float | int | None, float]]:
    """The figure of each row of the table and the share of it that these parts are: equal layers are a row together."""
    wanted = set(parts)
    found = []
    for row in table.rows:
        mine = sum(part in wanted for part in row.members)
        if mine:
            found.append((getattr(row, figure), mine / len(row.members)))
    return found


def _sum(table: PartTable, parts: tuple[Part, ...], figure: str) -> int:
    return round(sum((value or 0) * share for value, share in _share(table, parts, figure)))


def _known(table: PartTable, parts: tuple[Part, ...], figure: str) -> float | None:
    """The sum; None where the side does not know the figure at all."""
    if all(getattr(row, figure) is None for row in table.rows):
        return None
    return sum((value or 0) * share for value, share in _share(table, parts, figure))
