"""A plain value of Python's that moves: whether two are one, and what a step of the model writes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from detente.bridge.live.places import has
from detente.bridge.live.places import put as put_into
from detente.bridge.live.python import PLAIN


@dataclass(frozen=True)
class Write:
    """A plain value that a step of the model writes; ``by``: an integer, by how much more than before."""

    table: Any
    key: Any
    value: Any
    name: str
    by: int | None = None

    def due(self, counted: Collection[str]) -> tuple[Any, Any, Any]:
        """(table, key, value) for the step that has run: of a number that only counts, what it is now and ``by``."""
        if self.by is not None and self.name in counted and has(self.table, self.key):
            return self.table, self.key, self.table[self.key] + self.by
        return self.table, self.key, self.value


def put(due: tuple[Any, Any, Any]) -> None:
    """What ``Write.due`` said; may be done twice."""
    put_into(*due)


def bare(value: Any) -> Any:
    """An integer itself, of one that notes what is asked of it."""
    return value if type(value) in PLAIN or not isinstance(value, int) else int.__add__(value, 0)


def by(then: Any, now: Any) -> int | None:
    counts = isinstance(then, int) and isinstance(now, int) and not isinstance(then, bool)
    return int.__sub__(now, then) if counts else None


def same(then: Any, now: Any) -> bool:
    """Whether two objects are one value of Python's."""
    if type(then) is not type(now) or not isinstance(then, PLAIN):
        return False
    if isinstance(then, int):  # of a number that notes what is asked of it (capture/counters.py), unasked
        return bool(int.__eq__(then, now))
    return then == now or repr(then) == repr(now) == "nan"
