"""How much of the machine other processes used meanwhile."""

from __future__ import annotations

import os

import psutil


class ForeignLoad:
    """CPU time of the whole machine minus that of our own children, over an interval."""

    def __init__(self) -> None:
        self._machine, self._own = _busy(), _children()
        self._at = _total()

    def share(self) -> float:
        """Share of the machine's CPU time that was neither idle nor ours since this was made, 0 to 1. Meaningful once
        the child has been waited for: only then is its time in the children's account."""
        total = _total() - self._at
        foreign = (_busy() - self._machine) - (_children() - self._own)
        return min(1.0, max(0.0, foreign / total)) if total > 0 else 0.0


def _busy() -> float:
    t = psutil.cpu_times()
    return sum(t) - t.idle - getattr(t, "iowait", 0.0) - getattr(t, "guest", 0.0)


def _total() -> float:
    t = psutil.cpu_times()
    return sum(t) - getattr(t, "guest", 0.0)


def _children() -> float:
    t = os.times()
    return t.children_user + t.children_system + t.user + t.system
