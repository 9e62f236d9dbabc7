"""Whose window is taken again: of each row one process, at a block that nobody can know."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from detente.records.evidence import Evidence
from detente.records.sample import Sample
from detente.records.session import Fingerprint, Process, Session, replay_name
from detente.records.window import Replay
from detente.session.blocks import _ordered
from detente.session.layout import lay_out
from detente.session.replaying import VARIABLE, Turns
from detente.session.request import Request

REQUEST = Request(("gemm",), ("torch-eager", "jax"), "tiny", blocks=5)
LAYOUT = lay_out(REQUEST)
CELL = next(c for c in LAYOUT.cells if c.label == "jax")


def timed(block: int) -> Process:
    evidence = Evidence("ok", "done", samples=(Sample(10_000_000),))
    return Process(CELL, "time", block, 0, 0.0, 1.0, 0.0, evidence)


def taken(block: int, reason: str = "") -> Process:
    found = {replay_name(CELL, block): (Replay(1, 1, reason=reason),)}
    maker = replace(CELL, stack="torch-eager", label="replay")
    return Process(maker, "replay", block, 0, 0.0, 1.0, 0.0, Evidence("ok", "done", replays=found))


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")


def turns(*processes: Process, request: Request = REQUEST) -> Any:
    session = Session("x", 0.0, (), Fingerprint({}, {}, ""), LAYOUT.cells, {}, LAYOUT.aa, processes)
    return Turns(SimpleNamespace(request=request, ledger=SimpleNamespace(session=session)))  # type: ignore[arg-type]


def test_the_block_differs_from_session_to_session_and_comes() -> None:
    first = {next(b for b in range(5) if made.has(CELL, b)) for made in (turns() for _ in range(200))}
    assert first == {0, 1, 2, 3, 4}


def test_the_twin_is_never_asked_and_nobody_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = next(c for c in LAYOUT.cells if c.label.endswith("#aa"))
    assert not any(turns().has(twin, 4) for _ in range(20))
    monkeypatch.setenv(VARIABLE, "0")
    assert not turns().has(CELL, 4)


def test_once_is_not_the_last_time_but_rarely_twice() -> None:
    again = sum(turns(timed(0), taken(0)).has(CELL, 4) for _ in range(1000))
    assert 40 < again < 200


def test_what_could_not_be_taken_is_tried_once_more() -> None:
    failed = "the reference ran out of memory"
    assert turns(timed(0), taken(0, failed)).has(CELL, 4)
    assert not turns(timed(0), taken(0, failed), timed(1), taken(1, failed)).has(CELL, 4)


def test_under_a_budget_the_rows_of_a_contract_share_a_block_that_nobody_knows() -> None:
    request = replace(REQUEST, blocks=None, budget_s=720.0)
    rows = [c for c in LAYOUT.cells if not c.label.endswith("#aa")]
    seen = set()
    for _ in range(100):
        made = turns(request=request)
        firsts = {next(b for b in range(5) if made.has(c, b)) for c in rows}
        assert len(firsts) == 1
        seen |= firsts
    assert seen == {0, 1, 2}


def test_every_row_takes_every_place_of_a_block_equally_often() -> None:
    under: Any = SimpleNamespace(request=REQUEST)
    for size in (2, 3):
        cells = list(LAYOUT.cells)[:size]
        places = Counter(
            (place, cell.label)
            for block in range(2 * size)
            for place, cell in enumerate(_ordered(under, block, cells))
        )
        assert set(places.values()) == {2} and len(places) == size * size
        first = [_ordered(under, b * size, cells) for b in range(12)]
        assert len({tuple(c.label for c in order) for order in first}) > 1
