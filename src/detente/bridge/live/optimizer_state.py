"""``optimizer.state`` while a step trains a copy of it: who asks for it gets what was trained, and writes count.

Loops read moments to log them, set those of dead neurons to zero, clear all of them. The table itself is seen here; the
tensors that it hands out are watched like the module's (bridge/live/guard.py).

How it can fail: a reader that goes past the methods of a dictionary, in C.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from detente.bridge.private import holders, pytree

_READS = ("__getitem__", "get", "items", "values", "keys", "__iter__", "__contains__", "__len__", "__eq__")
_WRITES = ("__setitem__", "__delitem__", "pop", "popitem", "setdefault", "update", "clear", "__ior__")


class SeenState(defaultdict):
    """The same entries in the same order; every question is told to those that train them."""

    def __init__(self, entries: Any = ()) -> None:
        self.told: list[weakref.WeakMethod[Callable[[], None]]] = []
        super().__init__(dict, entries)

    def _tell(self) -> None:
        for asked in self.told:
            if (alive := asked()) is not None:
                alive()

    def __reduce__(self) -> Any:
        """A copy is a plain one: nobody trains it."""
        self._tell()
        return defaultdict, (dict,), None, None, iter(self.items())

    def copy(self) -> Any:
        return defaultdict(dict, self.items())

    __copy__ = copy


def _telling(name: str) -> Any:
    plain = getattr(defaultdict, name)

    def method(self: SeenState, *args: Any, **named: Any) -> Any:
        self._tell()
        return plain(self, *args, **named)

    method.__name__ = name
    return method


for _name in (*_READS, *_WRITES):
    setattr(SeenState, _name, _telling(_name))


def see(optimizer: Any, asked: Callable[[], None]) -> bool:
    """``asked`` is called before anybody reads or writes the optimizer's state. Whether that is new: somebody has put
    another table there."""
    held = vars(optimizer).get("state")  # of one that wraps another it may be the other's
    if isinstance(held, SeenState):
        held.told = [known for known in held.told if known() is not None]
        if any(known() == asked for known in held.told):
            return False
    elif isinstance(held, dict):
        held = optimizer.state = SeenState(held)
    else:
        return False
    held.told.append(weakref.WeakMethod(asked))  # type: ignore[arg-type]
    return True


def unseen(optimizer: Any) -> bool:
    """Whether another table stands where ours was."""
    held = vars(optimizer).get("state")
    return isinstance(held, dict) and type(held) is not SeenState


def tensors_in(optimizer: Any) -> Iterator[torch.Tensor]:
    """Every tensor of the state, without telling anybody."""
    state = getattr(optimizer, "state", None)
    for entry in dict.values(state) if isinstance(state, dict) else ():
        values = pytree.tree_leaves(entry) if isinstance(entry, dict) else (entry,)
        yield from (value for value in values if isinstance(value, torch.Tensor))


def unheld(optimizer: Any, known: list[tuple[torch.Tensor, int]]) -> set[int]:
    """Ids of those of the ``known`` that nobody holds but the optimizer's table: who reads one again asks the table,
    and is told of. A tensor, the dictionary that it stands in and its memory are counted by who refers to them."""
    found, ids = set(), {id(tensor) for tensor, _ in known}
    state = getattr(optimizer, "state", None)
    if type(state) is not SeenState:
        return found
    for entry in dict.values(state):
        # The table, this loop and the question itself.
        if type(entry) is not dict or sys.getrefcount(entry) > 3:
            continue
        for value in entry.values():
            # The dictionary, ``known``, this loop and the question.
            if (
                id(value) in ids
                and sys.getrefcount(value) <= 4
                and value.layout is torch.strided
                and holders(value) == 1
            ):
                found.add(id(value))
    return found
