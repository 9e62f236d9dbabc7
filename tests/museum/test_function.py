"""Rows that compute another function: caught at the row that does, and there alone."""

from __future__ import annotations

from typing import Any

import pytest
from museum_of_pitfalls import Cells, Planted, assert_caught, assert_fair, judged

FAIR = ("torch-eager",)  # every exhibit here is a torch row
PLANTED = {
    "ErfGelu": Planted("void", "not-the-same-function"),
    "Epsilon": Planted("void", "not-the-same-function"),
    "OtherWeights": Planted("void", "weights-differ"),
    "DroppedTie": Planted("void", "not-the-same-function"),
    "Bf16Product": Planted("void", "not-the-same-function"),
    "Dropout": Planted("void", "modes-differ"),
}


@pytest.fixture(scope="module")
def cells(detente: Any) -> Cells:
    return judged(detente, "train-step", PLANTED, FAIR)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_pitfall_is_caught(cells: Cells, name: str) -> None:
    assert_caught(cells[name], PLANTED[name])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FAIR)
def test_the_fair_rows_beside_it_are_not(cells: Cells, name: str) -> None:
    assert_fair(cells[name])
