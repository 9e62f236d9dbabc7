"""Plain values of a batch that are others in the next one, and what a step makes of each.

A float that is computed with becomes an input of the program, a text or a whole number of which nobody asks anything
(the file that a picture is of, the number of a sample) is left out of what a program is for, and of any other every
value is a program. Which it is a capture finds out when the second value comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from detente.bridge.live.unasked import KINDS
from detente.bridge.state.place import Placed, with_numbers, without_asking

FEW = 8  # values that are tried one by one, where all together are refused


class PlainValues:
    """``capture`` captures a program for a batch, and raises where it cannot; ``warn`` tells the user what moves."""

    def __init__(self, capture: Callable[[Placed], Any], warn: Callable[[str], None]) -> None:
        self._capture, self._warn = capture, warn
        self._float_inputs: bool | None = None  # whether floats are inputs; None: not asked yet
        self._unasked: set[str] = set()  # by name
        self._asked: set[str] = set()
        self._as_they_are: set[Any] = (
            set()
        )  # modes and structures in which one is asked for that was not in another

    def found(
        self, placed: Placed, mode: Any, made: Callable[[], Iterator[Any]], find: Callable[[Placed], Any]
    ) -> tuple[Any, Placed]:
        """What ``find`` finds for this batch, and the batch as that takes it. ``mode`` is what a program depends on
        besides, ``made`` are the keys of the layouts that there are programs for."""
        where = (placed.layout.shape, placed.layout.avals, mode)
        if not placed.layout.static or where in self._as_they_are:
            return find(placed), placed
        known = self._as(placed, self._float_inputs is True, self._unasked)
        floats, others = self._new(placed, made())
        if not floats and not others:
            try:
                return find(known), known
            except Exception:
                if known is placed:
                    raise
                found = find(placed), placed
                self._as_they_are.add(where)
                return found
        try:
            trial = self._as(placed, floats or self._float_inputs is True, self._unasked | others)
            found = find(trial), trial
        except Exception:
            if others:
                self._apart(placed, others)
                return self.found(placed, mode, made, find)
            self._float_inputs = False
            self._warn("a number in the batch changes between steps and decides more than a product")
            return self.found(placed, mode, made, find)
        self._float_inputs = True if floats else self._float_inputs
        self._unasked |= others
        return found

    def _as(self, placed: Placed, floats: bool, unasked: set[str]) -> Placed:
        marked = without_asking(placed, unasked)
        own = any(type(value) is float for _, value in placed.layout.static)
        return with_numbers(marked) if floats and own else marked

    def _new(self, placed: Placed, made: Iterator[Any]) -> tuple[bool, set[str]]:
        """Whether a float has its second value, and the names of what else has; nothing that was found out before."""
        layout = placed.layout
        values = {i: (value, label) for (i, value), label in zip(layout.static, layout.labels, strict=True)}
        floats, others, mine = False, set[str](), layout.key
        for key in made:
            for place in _apart_in(mine, key):
                value, label = values[place]
                floats |= type(value) is float and self._float_inputs is None
                if type(value) in KINDS and label not in self._unasked and label not in self._asked:
                    others.add(label)
        return floats, others

    def _apart(self, placed: Placed, others: set[str]) -> None:
        """Finds out of each whether it is asked for."""
        for label in sorted(others):
            try:
                if 1 < len(others) <= FEW:
                    self._capture(self._as(placed, self._float_inputs is True, self._unasked | {label}))
                    self._unasked.add(label)
                    continue
            except Exception:
                pass
            self._asked.add(label)


def _apart_in(one: Any, other: Any) -> list[int]:
    """The positions of plain values in which two layouts differ, by their keys; none where they differ in more."""
    (shape, avals, mine, order, _), (shapes, theirs, others, orders, _) = one, other
    if (shape, avals, order) != (shapes, theirs, orders) or len(mine) != len(others):
        return []
    if any(a[:2] != b[:2] for a, b in zip(mine, others, strict=True)):
        return []
    return [a[0] for a, b in zip(mine, others, strict=True) if len(a) == len(b) and a != b]
