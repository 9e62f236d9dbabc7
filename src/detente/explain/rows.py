"""The rows of a session as explaining sees them: what may be compared, block by block, and why the rest may not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detente.explain.question import Question
from detente.explain.waterfall import Medians
from detente.judge.judgement import judge
from detente.judge.looks import looks_of
from detente.judge.meant import rules_of
from detente.judge.rows import block_medians, make_row
from detente.judge.statistics import MARGIN
from detente.records.arm import NO_ARM
from detente.records.fault import UsageFault
from detente.records.finding import Finding
from detente.records.result import Result
from detente.records.session import Process, Session
from detente.stacks.factors import Facts, Row, failed_checks


@dataclass(frozen=True)
class Rows:
    """One group of a session. A row is a stack and its arm.

    medians  seconds per step by block, of every row that ran well, was proved and, under an arm, did what it says
    refused  row -> why its figures are not used
    noise    how far equal programs may lie apart, relative, as the A/A pair says; None where nobody knows
    blocks   the whole ones
    share    what a look at this session may spend of alpha
    unsure   why no gap of this session is settled; empty where that may be said
    twins    the A/A twin's figures, under the row that it repeats
    despite  row -> why no comparison takes it, which is what is asked here
    """

    group: str
    medians: Mapping[Row, Medians]
    refused: Mapping[Row, str]
    noise: float | None
    blocks: tuple[int, ...]
    share: float = 1.0
    unsure: str = ""
    twins: Mapping[Row, Medians] = field(default_factory=dict)
    despite: Mapping[Row, str] = field(default_factory=dict)

    def why_not(self, row: Row) -> str:
        """Why a row has no figures; empty where it has."""
        if row in self.medians:
            return ""
        return self.refused.get(row, f"{label_of(row)} was not measured")

    @property
    def log_noise(self) -> float:
        """``noise`` as a log ratio; the margin where nobody knows it."""
        return math.log1p(max(MARGIN, self.noise or 0.0))


def rows_of(session: Session, group: str, stack: str = "", lacks: Sequence[str] = ()) -> Rows:
    """The rows of a group. Every rule, proof and check is asked again, of the evidence: what a session says of itself
    is no reason to believe it. An A/A twin is no row of its own.

    ``stack`` lacks these factors, by its capture, and the question is what they are worth: what the audit finds of
    them in its rows (``judge/meant.py``) makes them void in a comparison, and is no reason to leave them out here."""
    result = judge(session)
    asked = _asked(result, session, group, stack, lacks)
    if asked:
        result = judge(session, set_aside=frozenset((f.cell, f.rule) for f in asked))
    said = {(c.group, c.label): (c.status, c.reason) for c in result.cells}
    facts = _facts(session, group)
    twin = session.aa[1] if session.aa else None
    medians: dict[Row, Medians] = {}
    refused: dict[Row, str] = {}
    twins: dict[Row, Medians] = {}
    for cell in session.planned:
        row = (cell.stack, cell.arm)
        if cell.group != group or (row in medians and cell.label != twin):
            continue
        status, reason = said.get((group, cell.label), ("skipped", "not measured"))
        why = "" if status == "ok" else f"{cell.label} is {status}: {reason}"
        why = why or "; ".join(failed_checks(*row, facts))
        if not why:
            kept = twins if cell.label == twin else medians
            kept[row] = block_medians(make_row(session, cell))
        elif cell.label != twin:
            refused[row] = why
    noise = result.session.noise.get(group)
    drifting = result.session.state == "drifting"
    return Rows(
        group,
        medians,
        {row: why for row, why in refused.items() if row not in medians},
        noise.bound if noise is not None and noise.known else None,
        session.whole_blocks(),
        looks_of(session).share,
        "the session is drifting: its A/A pair lies apart" if drifting else "",
        twins,
        {(stack, NO_ARM): f"{asked[0].rule}: {asked[0].what}"}
        if asked and (stack, NO_ARM) in medians
        else {},
    )


def _asked(
    result: Result, session: Session, group: str, stack: str, lacks: Sequence[str]
) -> tuple[Finding, ...]:
    """What the audit finds in the rows of ``stack`` as it is because it lacks these factors."""
    mine = {c.key for c in session.planned if (c.group, c.stack, c.arm) == (group, stack, NO_ARM)}
    found = [f for c in result.cells if f"{c.group}/{c.label}" in mine for f in c.findings]
    return tuple(f for f in found if f.severity == "void" and f.rule in rules_of(lacks))


def group_of(session: Session, question: Question) -> str:
    """The group of a session that a question is about. Raises UsageFault for a session that holds nothing of it."""
    asked = (question.workload, question.size, question.contract, question.precision)
    for cell in session.planned:
        mine = (cell.workload, cell.size, cell.contract.name, cell.contract.precision)
        if mine == asked and cell.stack in (question.a, question.b) and not cell.arm:
            return cell.group
    raise UsageFault(
        f"session {session.id} has no rows of {question.a} and {question.b} at {' '.join(asked)}",
        f"`detente explain {question.workload} {question.a} {question.b} --size {question.size}` measures them",
    )


def plain_captures(session: Session, group: str) -> list[Process]:
    """The captures of a group's rows as they are, in their order. Of the same stack there are others in a session:
    under an arm, of another workload, and at float64 where its program is proved on another's runtime."""
    return [p for p in session.processes if p.kind == "capture" and p.cell.group == group and not p.cell.arm]


def _facts(session: Session, group: str) -> dict[Row, Facts]:
    """What the compiler made of every row that was captured; of several captures the last."""
    return {
        (p.cell.stack, p.cell.arm): p.evidence.probes.get("built", {})
        for p in session.processes
        if p.kind == "capture" and p.cell.group == group and p.evidence.status == "ok"
    }


def label_of(row: Row) -> str:
    """``jax[donation=off]``."""
    stack, arm = row
    return arm.label(stack)
