"""Where the budget does not hold five blocks of all rows, the first named row, the fastest and the twin go first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detente.records.evidence import Evidence
from detente.records.sample import Sample
from detente.records.session import Fingerprint, Process, Session, replay_name
from detente.records.verdict import LEAST_BLOCKS
from detente.records.window import Replay, Window
from detente.session import resting
from detente.session.asked import settings_of
from detente.session.estimate import AGAIN, Estimates, replays_s
from detente.session.first_rows import chosen_rows, rows_first
from detente.session.forecast import Cost
from detente.session.layout import is_twin, lay_out
from detente.session.request import Request
from detente.session.resting import after_all, rest_before, turn
from detente.store.spool import Spool, read_spool

STEP_S = {"torch-eager": 1.2, "torch-compile": 0.9, "jax": 0.8, "detente": 0.85, "torch-eager#aa": 1.2}
REQUEST = Request(("gemm",), ("torch-eager", "torch-compile", "jax", "detente"), "tiny", budget_s=720.0)


@pytest.fixture
def after_one_block() -> Session:
    layout = lay_out(REQUEST)
    processes = tuple(_process(c, 0) for c in layout.cells)
    fingerprint = Fingerprint({}, settings_of(REQUEST, layout), "")
    return Session("x", 0.0, (), fingerprint, layout.cells, {}, layout.aa, processes)


def _process(cell: Any, block: int) -> Process:
    seconds = STEP_S[cell.label] * (1 + 0.001 * block)
    samples = tuple(Sample(round(seconds * 1e9)) for _ in range(5))
    return Process(cell, "time", block, 0, 0.0, 30.0, 0.0, Evidence("ok", "done", samples=samples))


def labels(cells: Any) -> list[str]:
    return [c.label for c in cells]


def test_three_rows_and_the_twin(after_one_block: Session) -> None:
    found = rows_first(after_one_block.planned, after_one_block, lambda cells, _: len(cells) <= 4)
    assert labels(found) == ["torch-eager", "jax", "detente", "torch-eager#aa"]


def test_two_where_three_do_not_fit_and_all_where_nothing_does(after_one_block: Session) -> None:
    planned = after_one_block.planned
    two = rows_first(planned, after_one_block, lambda cells, _: len(cells) <= 3)
    assert labels(two) == ["torch-eager", "jax", "torch-eager#aa"]
    assert rows_first(planned, after_one_block, lambda cells, _: False) == planned
    # The fewest nearly fit: an estimate is no reason to run four blocks of everything, which decide nothing.
    near = rows_first(planned, after_one_block, lambda cells, times: len(cells) <= 2.5 * times)
    assert near == two
    assert rows_first(planned, after_one_block, lambda cells, _: True) == planned


def with_steps(session: Session, **step_s: float) -> Session:
    """``session`` where rows take other seconds per step."""
    processes = []
    for p in session.processes:
        seconds = step_s.get(p.cell.label.replace("-", "_"), STEP_S[p.cell.label])
        evidence = replace(p.evidence, samples=tuple(Sample(round(seconds * 1e9)) for _ in range(5)))
        processes.append(replace(p, evidence=evidence))
    return replace(session, processes=tuple(processes))


def test_where_the_fastest_are_too_near_to_be_told_apart_the_row_that_differs_most_goes_on(
    after_one_block: Session,
) -> None:
    """torch-eager 1.24 s, jax 1.41 s and detente 1.73 s: at five blocks the first two decide nothing."""
    planned = after_one_block.planned
    near = with_steps(after_one_block, torch_eager=1.24, torch_compile=1.38, jax=1.41, detente=1.73)
    assert labels(chosen_rows(planned, near, 2)) == ["torch-eager", "detente", "torch-eager#aa"]
    assert labels(chosen_rows(planned, near, 3)) == [
        "torch-eager",
        "torch-compile",
        "detente",
        "torch-eager#aa",
    ]
    # A fastest row that is far ahead is what people want to know, whoever is further behind.
    ahead = with_steps(after_one_block, torch_eager=1.24, torch_compile=1.1, jax=0.9, detente=2.4)
    assert labels(chosen_rows(planned, ahead, 2)) == ["torch-eager", "jax", "torch-eager#aa"]
    # Where nobody differs by much, no choice helps.
    equal = with_steps(after_one_block, torch_eager=1.0, torch_compile=0.99, jax=1.01, detente=1.02)
    assert labels(chosen_rows(planned, equal, 2)) == ["torch-eager", "torch-compile", "torch-eager#aa"]
    # A row without a figure is no row that differs.
    lost = replace(near, processes=tuple(p for p in near.processes if p.cell.label != "detente"))
    assert labels(chosen_rows(planned, lost, 2)) == ["torch-eager", "torch-compile", "torch-eager#aa"]


def test_every_comparison_keeps_its_own_reference(after_one_block: Session) -> None:
    layout = lay_out(Request(("gemm", "ffn"), REQUEST.stacks, "tiny"))
    found = chosen_rows(layout.cells, after_one_block, 2)
    for group in {c.group for c in layout.cells}:
        own = [c.label for c in found if c.group == group]
        assert own[0] == "torch-eager" and own[-1] == "torch-eager#aa" and len(own) == 3


def test_no_block_waits_for_a_row_that_rests_and_its_figures_stay(
    after_one_block: Session, tmp_path: Path
) -> None:
    going = rows_first(after_one_block.planned, after_one_block, lambda cells, _: len(cells) <= 4)
    with Spool.create(tmp_path, after_one_block) as spool:
        for block in range(1, 5):
            for cell in going:
                spool.append(_process(cell, block))
        assert read_spool(spool.path).whole_blocks() == (0,)
        (resting,) = [c for c in after_one_block.planned if c not in going]
        spool.amend(rested={resting.key: "the budget holds five blocks of the others"})
    session = read_spool(tmp_path / "x.jsonl")
    assert session.whole_blocks() == (0, 1, 2, 3, 4)

    judge = pytest.importorskip("detente.judge")
    result = judge.judge(session)
    rows = {c.label: c for c in result.cells}
    assert rows["torch-compile"].steady_s.processes == 1
    assert rows["torch-compile"].status == "ok"
    assert rows["torch-compile"].reason == "the budget holds five blocks of the others"
    words = {(v.a, v.b): (v.word, v.blocks) for v in result.verdicts}
    assert words["jax", "torch-eager"][1] == words["detente", "torch-eager"][1] == 5
    assert words["torch-compile", "torch-eager"] == ("UNDECIDED", 1)


class _Asked:
    """What ``turn`` asks of a session that runs: a budget that holds ``rows`` of them for as many blocks as a verdict
    needs, and one block of all where ``later``."""

    def __init__(
        self, session: Session, rows: int, *, limit_s: float | None = 720.0, later: bool = False
    ) -> None:
        self.said: list[str] = []
        self.request = SimpleNamespace(blocks=None, memory=False)
        self.ledger = SimpleNamespace(session=session, rest=self._rest)
        self.tally = SimpleNamespace(say=self.said.append)
        self.budget = SimpleNamespace(
            limit_s=limit_s,
            cost_s=lambda kind, cells, session: len(cells),
            over=lambda cost, overtime: cost > rows * (LEAST_BLOCKS - 1),  # one block is whole
            holds_block=lambda cells, memory, session: later,
        )
        self.layout = SimpleNamespace(cells=session.planned)

    def _rest(self, cells: Any, why: str) -> None:
        rested = {c.key: why for c in cells}
        self.ledger.session = replace(self.ledger.session, rested=rested)

    def __call__(self) -> list[str]:
        return labels(turn(self, list(self.ledger.session.planned)))  # type: ignore[arg-type]


def test_with_room_for_all_nobody_rests(after_one_block: Session) -> None:
    for asked in (_Asked(after_one_block, rows=5), _Asked(after_one_block, rows=0, limit_s=None)):
        assert asked() == labels(after_one_block.planned) and asked.said == []


def test_with_room_for_four_the_others_rest_until_these_have_their_blocks(after_one_block: Session) -> None:
    asked = _Asked(after_one_block, rows=4)
    assert asked() == ["torch-eager", "jax", "detente", "torch-eager#aa"]
    assert len(asked.said) == 1 and asked.said[0].startswith("torch-compile let others go first")
    # Said once; the next block asks again and the same rows go on.
    assert asked() == ["torch-eager", "jax", "detente", "torch-eager#aa"] and len(asked.said) == 1
    # Once they have what a verdict needs, all go on, as far as a block of all fits.
    session = asked.ledger.session
    going = [c for c in session.planned if c.key not in session.rested]
    enough = replace(session, processes=tuple(_process(c, b) for b in range(LEAST_BLOCKS) for c in going))
    for later, wanted in ((True, labels(session.planned)), (False, labels(going))):
        assert _Asked(enough, rows=4, later=later)() == wanted


class _Planned:
    """What ``rest_before`` asks of a session before anything ran, and what its rows' processes would take."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, first_s: dict[str, float], later_s: float = 25.0
    ) -> None:
        layout = lay_out(REQUEST)
        costs = {c.key: Cost(first_s.get(c.label, 50.0), later_s) for c in layout.cells}
        monkeypatch.setattr(resting, "forecast", lambda request, cells, folder: costs)
        session = Session("x", 0.0, (), Fingerprint({}, {}, ""), layout.cells, {}, layout.aa, ())
        self.said: list[str] = []
        self.expected: dict[str, float] = {}
        self.request, self.layout = REQUEST, layout
        self.ledger = SimpleNamespace(session=session, rest=self._rest)
        self.tally = SimpleNamespace(say=self.said.append)
        self.budget = SimpleNamespace(
            limit_s=REQUEST.budget_s, estimates=SimpleNamespace(expect=self.expected.update)
        )

    def _rest(self, cells: Any, why: str) -> None:
        rested = {**self.ledger.session.rested, **{c.key: why for c in cells}}
        self.ledger.session = replace(self.ledger.session, rested=rested)

    def __call__(self) -> list[str]:
        rest_before(self)  # type: ignore[arg-type]
        return [c.label for c in self.layout.cells if c.key in self.ledger.session.rested]


def test_a_row_whose_start_takes_a_good_part_of_the_budget_lets_others_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = _Planned(monkeypatch, {"torch-compile": 200.0})
    assert planned() == ["torch-compile"] and "about 200 s" in planned.said[0]
    assert max(planned.expected.values()) == 200.0
    # Not where all fit, nor where its start is like the others'.
    assert _Planned(monkeypatch, {"torch-compile": 200.0}, later_s=5.0)() == []
    assert _Planned(monkeypatch, {"torch-compile": 100.0})() == []


def test_the_first_named_row_and_one_other_always_start(monkeypatch: pytest.MonkeyPatch) -> None:
    every = dict.fromkeys(("torch-eager", "torch-compile", "jax", "detente"), 400.0)
    rested = _Planned(monkeypatch, every)()
    assert "torch-eager" not in rested and "torch-eager#aa" not in rested and len(rested) == 2


def test_what_was_asked_for_and_never_ran_gets_one_block_where_there_is_time(
    after_one_block: Session,
) -> None:
    (late,) = [c for c in after_one_block.planned if c.label == "torch-compile"]
    processes = tuple(p for p in after_one_block.processes if p.cell != late)
    resting_one = replace(after_one_block, processes=processes, rested={late.key: "its start takes long"})
    cells = list(after_one_block.planned)
    for session, room, wanted in (
        (resting_one, True, cells),
        (resting_one, False, []),
        (replace(resting_one, processes=after_one_block.processes), True, []),
        (after_one_block, True, []),
    ):
        asked = _Asked(session, rows=4, later=room)
        assert after_all(asked, cells) == wanted  # type: ignore[arg-type]


def test_a_row_that_never_ran_says_why(after_one_block: Session) -> None:
    judge = pytest.importorskip("detente.judge")
    (late,) = [c for c in after_one_block.planned if c.label == "torch-compile"]
    processes = tuple(p for p in after_one_block.processes if p.cell != late)
    session = replace(after_one_block, processes=processes, rested={late.key: "its start takes long"})
    assert session.whole_blocks() == (0,)
    (row,) = [c for c in judge.judge(session).cells if c.label == "torch-compile"]
    assert (row.status, row.reason) == ("skipped", "its start takes long")


def test_taking_again_is_in_what_the_next_blocks_cost(after_one_block: Session) -> None:
    """Each row's turn comes once, and then seldom; a twin is never asked."""
    planned = after_one_block.planned
    assert replays_s(planned, after_one_block) == 0.0
    eager = next(c for c in planned if c.label == "torch-eager")
    jax = next(c for c in planned if c.label == "jax")
    answers = {replay_name(c, 0): (Replay(1, 1),) for c in (eager, jax)}
    replay = Process(eager, "replay", 0, 0, 0.0, 40.0, 0.0, Evidence("ok", "done", replays=answers))
    session = replace(after_one_block, processes=(*after_one_block.processes, replay))
    # 20 s a row: two were taken, two were not.
    assert replays_s(planned, session) == pytest.approx(20.0 * (2 * AGAIN + 2))


def test_a_second_process_does_not_pay_what_one_of_many_pays(after_one_block: Session) -> None:
    (first, *_) = after_one_block.processes
    phases = {"import": 2.0, "build": 3.0, "memory": 17.0, "steady": 10.0, "keep": 7.0, "probes": 20.0}
    session = replace(after_one_block, processes=(replace(first, wall_s=61.0, phases=phases),))
    # Import, build and steady, and what any process takes besides.
    assert Estimates().next("time", first.cell, session) == pytest.approx(17.0)


def test_taking_again_is_guessed_before_it_was_done_once(after_one_block: Session) -> None:
    """A session of twelve minutes took four rows into its second block, and had no time for the fifth of any."""
    window = Window(8, 5 * 10**9)
    processes = tuple(
        replace(p, evidence=replace(p.evidence, build_s=4.8, third_s=1.2, window=window))
        for p in after_one_block.processes
    )
    session = replace(after_one_block, processes=processes)
    rows = [c for c in session.planned if not is_twin(c)]
    assert replays_s(rows[:2], session) == pytest.approx(2 * (3 * 4.8 + 6 * 1.2))
    assert replays_s(session.planned, session) == replays_s(rows, session)
