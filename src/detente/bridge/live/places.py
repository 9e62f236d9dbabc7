"""A place is a table and a key: where Python holds a value. Asking whether many of them hold what they held is one pass
in C, because a step asks it every time."""

from __future__ import annotations

import operator
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import chain
from types import CellType
from typing import Any


def has(table: Any, key: Any) -> bool:
    return key < len(table) if isinstance(table, list | deque) else key in table


def put(table: Any, key: Any, value: Any) -> None:
    if not isinstance(table, list | deque) or key < len(table):
        table[key] = value


class Slots:
    """What an object keeps in ``__slots__``, as a table. It holds the object where no weak reference can: what is gone
    has nothing in it."""

    def __init__(self, owner: Any) -> None:
        try:
            self._owner: Callable[[], Any] = weakref.ref(owner)
        except TypeError:
            self._owner = lambda: owner
        named = (vars(kind).get("__slots__", ()) for kind in type(owner).__mro__)
        self.names = [
            n
            for found in named
            for n in ((found,) if isinstance(found, str) else tuple(found))
            if not n.startswith("__")
        ]

    @property
    def owner(self) -> Any:
        return self._owner()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and hasattr(self.owner, name)

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self.owner, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if (owner := self.owner) is not None:
            object.__setattr__(owner, name, value)  # past what a frozen dataclass forbids

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self.owner, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self.names if name in self]


class OfClass:
    """What a class holds, as a table; ``view`` is what is asked before every step, in C."""

    def __init__(self, owner: type) -> None:
        self.owner, self.view = owner, vars(owner)

    def __contains__(self, name: object) -> bool:
        return name in self.view

    def __getitem__(self, name: str) -> Any:
        return self.view[name]

    def __setitem__(self, name: str, value: Any) -> None:
        type.__setattr__(self.owner, name, value)

    def __delitem__(self, name: str) -> None:
        type.__delattr__(self.owner, name)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.view))

    def __len__(self) -> int:
        return len(self.view)


class OfCell:
    """What a closure's variable holds, as a table with one place."""

    def __init__(self, owner: CellType) -> None:
        self.owner = owner

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        return self.owner.cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self.owner.cell_contents = value


class OfContext:
    """What a context variable says, as a table with one place: its default where nobody has set it (who puts that back
    changes nothing), and None where there is none."""

    def __init__(self, owner: ContextVar[Any]) -> None:
        self.owner = owner

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        try:
            return self.owner.get()
        except LookupError:
            return None

    def __setitem__(self, name: str, value: Any) -> None:
        self.owner.set(value)


class OfReference:
    """Whether what a weak reference refers to is there, as a table with one place. The thing itself is not held."""

    def __init__(self, owner: weakref.ref[Any]) -> None:
        self.owner = owner

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> bool:
        return self.owner() is not None

    def __setitem__(self, name: str, value: Any) -> None:
        """What is gone cannot be put back."""


_MADE_ANEW = (Slots, OfClass, OfCell, OfContext, OfReference)


def place(table: Any, key: Any) -> tuple[int, Any]:
    """One name for a place, whichever table was made to look at it; as long as what holds it lives."""
    return id(table.owner if isinstance(table, _MADE_ANEW) else table), key


_CALL: Any = operator.call


# Of these two that are equal do the same. Of other kinds equal is the same object, where they say nothing else of it.
_ALIKE = (types.BuiltinFunctionType, types.MethodType, str)
_FEW = 4  # of one table, for which a second question of it does not pay


def _one_by_one(value: Any) -> bool:
    """Whether ``==`` says more of it than whether it is the same object: it would take 1 for True, and asks tensors."""
    kind = type(value)
    return kind not in _ALIKE and kind.__eq__ is not object.__eq__


class Places:
    """Places with the objects that they hold.

    Keys of one table are looked up together. What is found is compared by identity: of functions, modules and most
    objects as a whole, which takes half as long, and of what may be equal to another object one by one.
    """

    def __init__(self, rows: Iterable[tuple[Any, Any, Any]] = ()) -> None:
        tables: dict[int, tuple[Any, list[Any], list[Any]]] = {}
        for holder, key, value in rows:
            table = holder.view if isinstance(holder, OfClass) else holder
            kept = tables.setdefault(id(table), (table, [], []))
            kept[1].append(key)
            kept[2].append(value)
        alike: list[tuple[Any, list[Any], list[Any]]] = []
        apart: list[tuple[Any, list[Any], list[Any]]] = []
        for table, keys, values in tables.values():
            asked = list(map(_one_by_one, values))
            if any(asked) and asked.count(False) < _FEW:
                apart.append((table, keys, values))
                continue
            for found, which in ((alike, False), (apart, True)):
                chosen = [i for i, one in enumerate(asked) if one is which]
                if chosen:
                    found.append((table, [keys[i] for i in chosen], [values[i] for i in chosen]))
        self._alike = [table for table, _, _ in alike]
        self._getters_alike = [operator.itemgetter(*keys) for _, keys, _ in alike]
        self._values_alike = [tuple(values) if len(values) > 1 else values[0] for _, _, values in alike]
        many = [found for found in apart if len(found[1]) > 1]
        ones = [found for found in apart if len(found[1]) == 1]
        self._tables = [table for table, _, _ in many]
        self._getters: list[Callable[[Any], Any]] = [operator.itemgetter(*keys) for _, keys, _ in many]
        self._values = [value for _, _, values in many for value in values]
        self._single = [table for table, _, _ in ones], [keys[0] for _, keys, _ in ones]
        self._alone = [values[0] for _, _, values in ones]

    def same(self) -> bool:
        """Whether every place holds the object that it held. Raises KeyError or IndexError where one is gone."""
        if list(map(_CALL, self._getters_alike, self._alike)) != self._values_alike:
            return False
        found = chain.from_iterable(map(_CALL, self._getters, self._tables))
        return all(map(operator.is_, found, self._values)) and all(
            map(operator.is_, map(operator.getitem, *self._single), self._alone)
        )
