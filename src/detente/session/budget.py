"""How long a session may take, and what the rest of it holds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from detente.records.cell import Cell
from detente.records.session import Session
from detente.records.verdict import LEAST_BLOCKS
from detente.session.estimate import Estimates, replays_s

# The share of the budget by which these may end later: four blocks decide nothing, and have cost as much. In
# two sessions of twelve minutes the fifth would have ended 17 and 18 % late.
OVERTIME = 0.2
# Rows are chosen for less: what processes will take is an estimate, and some are taken again by chance.
PLANNED_OVERTIME = 0.1


class Budget:
    """``limit_s`` seconds from ``begin`` (None: no limit), asked in what the next processes will probably take."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self.estimates = Estimates()
        self._begun = time.monotonic()

    def begin(self) -> None:
        """Count from now: what was waited for another session on this machine is not this session's time."""
        self._begun = time.monotonic()

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; None without a limit."""
        return None if self.limit_s is None else self.limit_s - (time.monotonic() - self._begun)

    def over(self, more_s: float, overtime: float = 0.0) -> bool:
        """Whether ``more_s`` seconds more would exceed it, by more than the share ``overtime`` of it."""
        return self.left_s is not None and more_s > self.left_s + overtime * (self.limit_s or 0.0)

    def cost_s(self, kind: str, cells: Sequence[Cell], session: Session) -> float:
        """Seconds that one more process of this kind of each cell will probably take."""
        return sum(self.estimates.next(kind, c, session) for c in cells)

    def only_block(self, cells: Sequence[Cell], session: Session) -> bool:
        """Whether it ends before a second block of ``cells`` would, when the last of the first is still to run: an A/A
        pair of one block tells nothing."""
        return self.over(self.cost_s("time", [*cells, cells[-1]], session))

    def holds_block(self, cells: Sequence[Cell], memory: Sequence[Cell], session: Session) -> bool:
        """Whether one more block of ``cells`` fits, and after it the memory runs of ``memory``, unless these would cost
        a block of those that a verdict needs. These may end a little later."""
        more = self.cost_s("time", cells, session) + replays_s(cells, session)
        if len(session.whole_blocks()) < LEAST_BLOCKS:  # another is worth more than the memory runs
            return not self.over(more, OVERTIME)
        return not self.over(more + self.cost_s("memory", memory, session))

    def eta_s(self, processes: int) -> float | None:
        """Seconds until so many more processes are through, or until it ends: what comes first. None before the first
        process."""
        mean = self.estimates.mean()
        if mean is None:
            return None
        plan = processes * mean
        return plan if self.left_s is None else min(plan, max(mean, self.left_s))
