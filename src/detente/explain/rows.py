"""The rows of a session as explaining sees them: what may be compared, block by block, and why the rest may not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detente.explain.question import Question
from detente.explain.waterfall import Medians
from detente.judge.headline import NOISE_UNKNOWN
from detente.judge.judgement import judge
from detente.judge.looks import looks_of
from detente.judge.meant import rules_of
from detente.judge.pairs import correlation_of
from detente.judge.rows import block_medians, make_row
from detente.judge.statistics import MARGIN
from detente.records.arm import NO_ARM
from detente.records.fault import UsageFault
from detente.records.finding import Finding
from detente.records.result import CellResult, Result
from detente.records.session import Process, Session
from detente.stacks.factors import Facts, Row, failed_checks

# What the audit says of a row of which the steps behind the first ones were not proved.
_WINDOW = ("window-not-proved", "unchecked")


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
    rho      the correlation of neighbouring blocks that every interval is widened for, as the judge has it; None: as
             these rows say by themselves
    pairs    that a verdict's correction counts: one where the session was measured for it, else all that a report of
             the session has
    busy     what others did to this machine meanwhile, so that nothing of it may be called the same
    unproved row with figures -> what is missing of its proof; a row that is not in it is proved
    early    rows that are proved in their first steps alone: what was timed behind them was not taken again
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
    rho: float | None = None
    pairs: int = 1
    busy: str = ""
    unproved: Mapping[Row, str] = field(default_factory=dict)
    early: frozenset[Row] = frozenset()

    def why_not(self, row: Row) -> str:
        """Why a row has no figures; empty where it has."""
        if row in self.medians:
            return ""
        return self.refused.get(row, f"{label_of(row)} was not measured")

    @property
    def log_noise(self) -> float:
        """``noise`` as a log ratio; the margin where nobody knows it."""
        return math.log1p(max(MARGIN, self.noise or 0.0))

    @property
    def correlation(self) -> float:
        """Between neighbouring blocks: no interval of an explanation is narrower than the verdict's would be."""
        if self.rho is not None:
            return self.rho
        return correlation_of((*self.medians.values(), *self.twins.values()), self.blocks).assumed

    @property
    def never_same(self) -> str:
        """Why nothing of this session may be called the same, nor a difference rejected; empty where it may."""
        return self.busy or ("" if self.noise is not None else NOISE_UNKNOWN)


def rows_of(
    session: Session, group: str, stack: str = "", lacks: Sequence[str] = (), asked_alone: bool = False
) -> Rows:
    """The rows of a group. Every rule, proof and check is asked again, of the evidence: what a session says of itself
    is no reason to believe it. An A/A twin is no row of its own.

    ``stack`` lacks these factors, by its capture, and the question is what they are worth: what the audit finds of
    them in its rows (``judge/meant.py``) makes them void in a comparison, and is no reason to leave them out here.
    ``asked_alone``: the session was measured for the pair that is asked about, and every other row of it for that."""
    result = judge(session)
    asked = _asked(result, session, group, stack, lacks)
    if asked:
        result = judge(session, set_aside=frozenset((f.cell, f.rule) for f in asked))
    said = {(c.group, c.label): c for c in result.cells}
    facts = _facts(session, group)
    twin = session.aa[1] if session.aa else None
    medians: dict[Row, Medians] = {}
    refused: dict[Row, str] = {}
    twins: dict[Row, Medians] = {}
    unproved: dict[Row, str] = {}
    early: set[Row] = set()
    for cell in session.planned:
        row = (cell.stack, cell.arm)
        if cell.group != group or (row in medians and cell.label != twin):
            continue
        found = said.get((group, cell.label))
        status, reason = (found.status, found.reason) if found is not None else ("skipped", "not measured")
        why = "" if status == "ok" else f"{cell.label} is {status}: {reason}"
        why = why or "; ".join(failed_checks(*row, facts))
        if not why:
            kept = twins if cell.label == twin else medians
            kept[row] = block_medians(make_row(session, cell))
            if cell.label != twin and found is not None:
                if open_ := _unproved(found):
                    unproved[row] = open_
                elif any((f.rule, f.severity) == _WINDOW for f in found.findings):
                    early.add(row)
        elif cell.label != twin:
            refused[row] = why
    noise = result.session.noise.get(group)
    drifting = result.session.state == "drifting"
    load = result.session.load
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
        noise.rho if noise is not None else None,
        1 if asked_alone else _shown_pairs(result, twin),
        load.reason if load is not None else "",
        unproved,
        frozenset(early),
    )


def _unproved(cell: CellResult) -> str:
    """What is missing of a row's proof; empty of one that is proved."""
    parity = cell.parity
    if parity is None:
        return "nothing was proved"
    if parity.precision_at:
        return f"in the timed process at {parity.precision_at} alone"
    levels = {
        "in float64 at a small size": parity.same_function,
        "in the timed process": parity.same_precision,
    }
    left = [where for where, said in levels.items() if said not in ("passed", "inherited")]
    return f"not proved {' nor '.join(left)}" if left else ""


def _shown_pairs(result: Result, twin: str | None) -> int:
    """The pairs that a report of this session corrects for (``judge/verdicts.py``)."""
    labels = Counter(c.group for c in result.cells if c.status != "skipped" and c.label != twin)
    return max(1, sum(n * (n - 1) // 2 for n in labels.values()))


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
