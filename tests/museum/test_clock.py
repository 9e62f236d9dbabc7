"""Pitfalls of the clock, of the region and of what is fed to it: caught at the row that has them, and there alone."""

from __future__ import annotations

from typing import Any

import pytest
from museum_of_pitfalls import Cells, Planted, assert_caught, assert_fair, judged

FAIR = ("torch-eager",)  # every exhibit here is a torch row
PLANTED = {
    "Unsynchronised": Planted("void", "clock-stops-early"),
    "ReadsBack": Planted("void", "regions-differ"),
    "Stale": Planted("void", "stale-inputs"),
    "OtherThreads": Planted("warn", "threads-differ"),
    "OptimizerOutside": Planted("void", "optimizer-outside"),
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
