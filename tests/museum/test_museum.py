"""A sample of the museum in `make test`: planted pitfalls in real sessions, each caught at the row that has it, and
there alone. `make museum` runs every room, quiet and beside a neighbour."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from detente.judge.rules import RULES
from detente.judge.rules.planting import LIVE
from tests.museum.rooms import BY_THE_MACHINE, ROOMS
from tests.museum.visit import Cells, label, visit, wrong_with_fair, wrong_with_planted

SAMPLE = {
    room: tuple(name for name, planted in kept.planted.items() if planted.sample)
    for room, kept in ROOMS.items()
    if any(planted.sample for planted in kept.planted.values())
}


@pytest.fixture(scope="module")
def seen(home: object) -> Callable[[str], Cells]:
    """A room's cells by label, from one `compare`."""
    return cache(lambda room: visit(ROOMS[room], SAMPLE[room], ROOMS[room].sampled, timeout=1500))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("room", "name"), [(room, name) for room, names in SAMPLE.items() for name in names])
def test_a_planted_pitfall_is_caught(seen: Callable[[str], Cells], room: str, name: str) -> None:
    assert wrong_with_planted(ROOMS[room], name, seen(room)[name]) == ""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("room", "stack"), [(room, stack) for room in SAMPLE for stack in ROOMS[room].sampled]
)
def test_the_fair_rows_beside_it_are_not(seen: Callable[[str], Cells], room: str, stack: str) -> None:
    assert wrong_with_fair(seen(room)[label(stack)]) == ""


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
