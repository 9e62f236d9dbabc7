"""A sample of the museum in `make test`: planted pitfalls in real sessions, each caught at the row that has it, and
there alone. `make museum` runs every room, quiet and beside a neighbour."""

from __future__ import annotations

import pytest

from detente.judge.rules import RULES
from detente.judge.rules.planting import LIVE
from tests.museum.rooms import BY_THE_MACHINE, ROOMS, Room
from tests.museum.visit import Cells, label, visit, wrong_with_fair, wrong_with_planted


def sample() -> Room:
    """One session of what the rooms give for the default run: a session of its own for each costs most of its time."""
    rooms = [r for r in ROOMS.values() if r.sampled or any(p.sample for p in r.planted.values())]
    first = rooms[0]
    assert {(r.workload, r.contract, r.precision, r.blocks) for r in rooms} == {
        (first.workload, first.contract, first.precision, first.blocks)
    }, "a sample of other workloads needs a session of its own"
    planted = {name: p for room in rooms for name, p in room.planted.items() if p.sample}
    fair = tuple(dict.fromkeys(stack for room in rooms for stack in room.sampled))
    return first._replace(planted=planted, fair=fair)


SAMPLE = sample()


@pytest.fixture(scope="module")
def seen(home: object) -> Cells:
    """The cells by label, from one `compare`."""
    return visit(SAMPLE, tuple(SAMPLE.planted), SAMPLE.fair, timeout=1500)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SAMPLE.planted)
def test_a_planted_pitfall_is_caught(seen: Cells, name: str) -> None:
    assert wrong_with_planted(SAMPLE, name, seen[name]) == ""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stack", SAMPLE.fair)
def test_the_fair_rows_beside_it_are_not(seen: Cells, stack: str) -> None:
    assert wrong_with_fair(seen[label(stack)]) == ""


def test_the_table_of_what_is_planted_live_is_the_museums_own() -> None:
    """README, `detente rule` and the rules' pages print it; here it is held against the exhibits."""
    planted = {p.rule for room in ROOMS.values() for p in room.planted.values()} | BY_THE_MACHINE
    assert planted == LIVE
    assert planted <= RULES.keys()
    assert len(LIVE) >= 24


def test_there_are_enough_fair_rows_and_no_two_are_the_same() -> None:
    rows = [(r.workload, r.contract, r.precision, stack) for r in ROOMS.values() for stack in r.fair]
    assert len(set(rows)) >= 40


def test_no_exhibit_confesses() -> None:
    """A stack that says what is wrong with it tests its own confession, and no rule."""
    from tests.museum.visit import ROOT

    for file in (ROOT / "tests" / "museum").glob("*.py"):
        assert "def " + "facts" not in file.read_text(encoding="utf-8"), file
