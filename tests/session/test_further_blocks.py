"""Blocks behind a settled number are run while the question is open, which is asked where the judge counts a look."""

from __future__ import annotations

from pathlib import Path

import pytest

from detente.records.session import Session
from detente.session.request import Request
from detente.session.run import run_session
from tests.sampled import sampled

NUMPY = f"{Path(__file__).with_name('own_framework.py')}:NumPy"


@pytest.mark.parametrize(
    ("settled_at", "asked", "blocks"),
    sampled([(4, [2, 4], 4), (2, [2], 2), (99, [2, 4], 6)], 3, several=True),
)
def test_blocks_are_added_until_the_question_is_settled(
    home: Path, settled_at: int, asked: list[int], blocks: int
) -> None:
    at, said = [], []

    def open_still(session: Session) -> bool:
        at.append(len(session.whole_blocks()))
        return at[-1] < settled_at

    request = Request(("gemm",), (NUMPY,), size="tiny", blocks=2, blocks_at_most=6, aa=False, memory=False)
    session = run_session(request, lambda event: said.append(event.text), open_still=open_still)
    assert at == asked and len(session.whole_blocks()) == blocks
    assert sum("not settled after" in text for text in said) == blocks // 2 - 1, said
    assert any("2 blocks or more" in text for text in said)
