"""A machine that others use: what is recorded, what counts as busy, and what may still be said and lead."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from planted_sessions import TWIN, make_session

from detente.judge import judge, more_blocks
from detente.judge.headline import LEAST_RATIO, at_least, hindrance, may_lead
from detente.judge.load import BUSY, load_of
from detente.records.codec import dumps, from_json
from detente.records.evidence import Evidence
from detente.records.session import Neighbour, Process, Session, Wait

EQUAL = {"torch-eager": 0.100, "jax": 0.100}
CLOSE = {"torch-eager": 0.100, "jax": 0.110}
FAR = {"torch-eager": 0.200, "jax": 0.100}


def loaded(session: Session, share: float, blocks: tuple[int, ...], label: str = "") -> Session:
    """The session with this foreign load in some of its blocks (of one row only, where one is named)."""

    def change(p: Process) -> Process:
        hit = p.kind == "time" and p.block in blocks and label in ("", p.cell.label)
        return replace(p, foreign=share) if hit else p

    return replace(session, processes=tuple(map(change, session.processes)))


def waited(session: Session, wait: Wait, block: int = 0) -> Session:
    first = next(i for i, p in enumerate(session.processes) if p.kind == "time" and p.block == block)
    processes = list(session.processes)
    processes[first] = replace(processes[first], waits=(wait,))
    return replace(session, processes=tuple(processes))


def word(session: Session) -> str:
    (verdict,) = judge(session).verdicts
    return verdict.word


@pytest.mark.parametrize(
    "disturb",
    [
        lambda s: loaded(s, 0.5, tuple(range(10))),
        lambda s: loaded(s, 0.5, (4,)),  # one block of ten: it moves a ratio as well as ten
        lambda s: loaded(s, 0.15, tuple(range(10)), "jax"),  # never over a tenth in a whole block
        lambda s: loaded(s, math.nan, (2,)),  # nobody knows
        lambda s: loaded(s, 45.0, tuple(range(10))),  # per cent, from another tool
        lambda s: loaded(s, -0.2, (0,)),
        lambda s: waited(s, Wait(0.5, 0.45, 30.0, quiet=False)),
        lambda s: waited(s, Wait(0.5, math.nan, 30.0, quiet=False), block=3),
    ],
)
def test_beside_others_nothing_is_the_same(disturb):
    """The same medians that are SAME on a quiet machine; the session goes on, because UNDECIDED settles nothing."""
    quiet = make_session(10, steps=EQUAL)
    assert word(quiet) == "SAME" and not more_blocks(quiet)
    session = disturb(quiet)
    result = judge(session)
    (verdict,) = result.verdicts
    assert verdict.word == "UNDECIDED" and "SAME is not said" in verdict.reason
    assert result.session.load and result.session.load.reason in verdict.reason
    assert result.session.aa[verdict.group].word == "UNDECIDED"
    assert more_blocks(session)


def test_a_wait_that_ended_quietly_holds_nothing_back():
    session = waited(make_session(10, steps=EQUAL), Wait(0.6, 0.02, 12.0, True, (Neighbour("cc1plus", 0.5),)))
    load = judge(session).session.load
    assert load and (load.reason, load.waited_s, load.gave_up, load.names) == ("", 12.0, False, ("cc1plus",))
    assert word(session) == "SAME"


def test_a_stored_session_is_judged_as_it_was():
    """The load travels in the record; a file without the new fields is read, and its load is what it measured."""
    session = waited(
        loaded(make_session(10, steps=EQUAL), 0.5, (3,)),
        Wait(0.5, 0.45, 30.0, False, (Neighbour("python3", 0.45),)),
    )
    assert judge(from_json(Session, json.loads(dumps(session)))) == judge(session)
    old = json.loads(dumps(loaded(make_session(10, steps=EQUAL), 0.5, (3,))))
    for process in old["processes"]:
        del process["waits"]
    assert word(from_json(Session, old)) == "UNDECIDED"


def test_larger_gaps_are_decided_and_lead_from_a_quarter_on():
    for steps, leads in ((CLOSE, False), (FAR, True)):
        for foreign, hindered in ((0.01, False), (0.5, True)):
            result = judge(make_session(10, steps=steps, foreign=foreign))
            (verdict,) = result.verdicts
            assert verdict.word in ("FASTER", "SLOWER")
            assert bool(hindrance(result.session, verdict.group)) is hindered
            assert may_lead(verdict, result.session) is (leads or not hindered)


def test_what_leads_is_the_nearer_end():
    """A ratio of 1.4 whose interval reaches down to 1.2 does not lead beside others."""
    result = judge(make_session(10, steps=FAR, foreign=0.5))
    (verdict,) = result.verdicts
    assert (at_least(verdict) or 0) == pytest.approx(1 / verdict.high)
    wide = replace(verdict, word="SLOWER", ratio=1.4, low=1.2, high=1.6)
    assert not may_lead(wide, result.session) and at_least(wide) == 1.2
    assert may_lead(replace(wide, low=LEAST_RATIO), result.session)
    for other in ("SAME", "LEANS", "UNDECIDED", "VOID"):
        assert not may_lead(replace(wide, word=other, low=2.0), result.session)


def test_nothing_leads_in_a_drifting_session():
    result = judge(make_session(10, steps=FAR, twin=1.08))
    assert result.session.state == "drifting"
    (verdict,) = result.verdicts
    assert not may_lead(replace(verdict, word="FASTER", low=0.1, high=0.2), result.session)


def test_memory_runs_and_unfinished_blocks_do_not_count_as_load():
    session = make_session(6, steps=EQUAL)
    torn = tuple(
        replace(p, foreign=0.9) if p.block == 5 else p
        for p in session.processes
        if not (p.block == 5 and p.cell.label == "jax")
    )
    cell = session.planned[0]
    extra = Process(cell, "memory", -1, 0, 9000.0, 5.0, 0.9, Evidence("ok", "done"))
    load = load_of(replace(session, processes=(*torn, extra)), (0, 1, 2, 3, 4))
    assert load.busy == 0 and load.worst is not None and load.worst < BUSY and not load.reason


def test_a_session_without_lives_of_processes_has_a_load():
    session = make_session(5, steps=EQUAL, foreign=0.5)
    for wall in (0.0, -3.0, math.nan, math.inf):
        bare = replace(session, processes=tuple(replace(p, wall_s=wall) for p in session.processes))
        assert load_of(bare, tuple(range(5))).worst == pytest.approx(0.5)


def test_an_aa_pair_that_did_not_come_to_its_end_leaves_the_noise_unknown():
    """Two A/A blocks only: the twin died in the third. Nobody knows the machine's noise, so nothing is SAME."""
    session = make_session(10, steps=EQUAL)
    dead = Evidence("failed", "steady", "killed by SIGKILL")
    cut = tuple(
        replace(p, evidence=dead) if p.cell.label == TWIN and p.block == 2 else p
        for p in session.processes
        if not (p.cell.label == TWIN and p.kind == "time" and p.block > 2)
    )
    result = judge(replace(session, processes=cut))
    (verdict,) = result.verdicts
    assert verdict.word == "UNDECIDED" and "A/A pair did not come to an end" in verdict.reason
    assert "A/A pair" in hindrance(result.session, verdict.group)
    assert not result.session.noise[verdict.group].known
