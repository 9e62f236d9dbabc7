"""Everything that rows need before they are timed."""

from __future__ import annotations

from collections.abc import Sequence

from detente.records.cell import Cell
from detente.session.arms import check_arms, take_programs
from detente.session.beyond import leave_out
from detente.session.proving import prepare, prove
from detente.session.underway import Underway


def make_ready(under: Underway, cells: Sequence[Cell]) -> None:
    """Rows that cannot fit end here, and those whose program nobody gives away; of the others the function is proved,
    what they load is made, and arms must have changed what they say. Raises Stopped on an interrupt."""
    cells = take_programs(under, leave_out(under, cells))
    prove(under, cells)
    prepare(under, cells)
    check_arms(under, cells)
