"""From a question to its answer: programs are captured, rows and arms measured, and what they say is put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from detente.explain.align import Match
from detente.explain.answer import Answer, answer, question_open
from detente.explain.budget import choose, too_long
from detente.explain.question import Question, arms_beside, ask, left_out
from detente.explain.rows import group_of, label_of, plain_captures
from detente.records.arm import read_arm
from detente.records.contract import CONTRACTS
from detente.records.fault import UsageFault
from detente.records.folders import data_folder
from detente.records.session import Process, Session
from detente.session.capturing import Captured, capture_programs
from detente.session.layout import lay_out
from detente.session.progress import Progress, Sink
from detente.session.request import Request
from detente.session.run import run_session
from detente.stacks.factors import Facts, Row
from detente.store.artefacts import artefacts_of
from detente.store.recorder import open_recorder

# What a timing process takes beyond the capture of its row: the sampled window, states handed out and compared.
_WINDOW_S = 15.0


def measured(request: Request, arms: bool, sink: Sink, by_hand: Sequence[Match] = ()) -> Answer:
    """Capture, measure and answer. ``request`` names one workload and two stacks."""
    question = _question(request)
    plain = replace(request, stacks=_captured_rows(question), aa=False)
    captured = capture_programs(plain, sink)
    built = _built(captured)
    question = question.knowing(built)
    rows, untested = _rows(question, request, arms, captured, built)
    if untested:
        sink(Progress("note", f"{len(untested)} causes are not tested within the budget"))
    session = run_session(
        replace(request, stacks=tuple(label_of(row) for row in rows), left_out=untested),
        sink,
        open_recorder(),
        known=[c.process for c in captured if c.process is not None],
        open_still=lambda session: question_open(question, session),
    )
    return answer(question, session, artefacts_of(data_folder()).folder, untested, by_hand)


def stored(session: Session, artefacts: Path, question: Question, by_hand: Sequence[Match] = ()) -> Answer:
    """What a session says that was measured before; its programs lie in ``artefacts``. Nothing is run, and no stack is
    asked for: they need not be here. Raises UsageFault for a session that holds no program of the two."""
    captured = plain_captures(session, group_of(session, question))
    if not any(p.evidence.status == "ok" for p in captured):
        raise UsageFault(
            f"session {session.id} holds no captured program",
            f"`detente explain {question.workload} {question.a} {question.b} --size {question.size}` captures them and "
            "measures",
        )
    return answer(
        question.knowing(_built(captured)), session, artefacts, left_out(session, question), by_hand
    )


def _question(request: Request) -> Question:
    """What the request means. Raises UsageFault where it means nothing, and where a row cannot run here at all."""
    layout = lay_out(replace(request, aa=False))
    for cell in layout.cells:
        if cell.key in layout.skipped:
            raise UsageFault(
                f"{cell.label} cannot run here: {layout.skipped[cell.key]}", "`detente stacks` says which can"
            )
    first = layout.cells[0]
    if any(read_arm(name)[1] for name in request.stacks):
        raise UsageFault(
            f"{' and '.join(request.stacks)}: an arm is no stack",
            "name the two stacks; the arms between them are found",
        )
    return ask(
        first.workload,
        first.size,
        first.contract.name,
        first.contract.precision,
        first.device,
        *request.stacks,
    )


def _captured_rows(question: Question) -> tuple[str, ...]:
    stand_in = question.path.stand_in
    return tuple(dict.fromkeys((question.a, question.b, *((stand_in,) if stand_in else ()))))


def _built(captured: Sequence[Captured | Process]) -> dict[str, Facts]:
    """Stack -> what the compiler made of its step."""
    return {c.cell.stack: c.evidence.probes.get("built", {}) for c in captured}


def _rows(
    question: Question,
    request: Request,
    arms: bool,
    captured: Sequence[Captured],
    built: Mapping[str, Facts],
) -> tuple[list[Row], dict[str, str]]:
    """The rows that are measured, the two ends first, and what does not fit into the budget."""
    took = {c.cell.stack: c.process.wall_s for c in captured if c.process is not None}
    longest = max(took.values(), default=_WINDOW_S)

    def cost_s(row: Row) -> float:
        return took.get(row[0], longest) + _WINDOW_S

    blocks = request.blocks or 1
    path = question.path
    twin = (path.a,) if request.aa else ()  # of the first row (session/layout.py), in every block
    chosen = choose(path, cost_s, blocks, request.budget_s, besides=twin)
    rows, untested, spent = list(chosen.rows), dict(chosen.untested), chosen.seconds
    region = CONTRACTS[question.contract].region
    for name in arms_beside(question, region, built) if arms else ():
        row = read_arm(name)
        if row in rows:
            continue
        more = blocks * cost_s(row)
        if request.budget_s is not None and spent + more > request.budget_s:
            untested[name] = too_long(blocks, spent + more, request.budget_s)
            continue
        rows.append(row)
        spent += more
    return rows, untested
