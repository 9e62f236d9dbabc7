"""What a program was captured from besides tensors: everything in Python that the model and the loss can reach.

A captured program is a copy of what Python said at the time: ``self.beta``, ``cfg["w"]``, a global, what a closure
holds. ``Sources`` walks over all of it once and remembers each value with the table that holds it, so that asking
before every step whether anything moved is one pass over flat lists.

Code of libraries is not walked into (their objects are, where the model or the loss holds them). How it can fail: a
value behind ``__getattr__``, a slot, a database, the clock: what no table of Python's holds.
"""

from __future__ import annotations

import hashlib
import operator
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from types import CellType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from detente.bridge.live.places import OfCell, OfClass, Places, has, place, put
from detente.bridge.live.python import PLAIN
from detente.bridge.live.writes import Write, bare, by, same

ABSENT = object()
OF_A_TRACE = (torch.Tensor, torch.SymFloat, torch.SymInt, torch.SymBool)
# What a function is made of that another may be put in the place of.
_MADE_OF = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
# What torch puts into every module: one without them does not run.
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


@dataclass(frozen=True)
class Whole:
    """A long list or dictionary, which is compared with what it held in one go. In C, and by identity first: equal
    values in other objects are looked at where something has moved. ``keys``: None of a list."""

    table: Any
    keys: list[Any] | None
    values: list[Any]
    name: str

    @classmethod
    def of(cls, table: Any, name: str) -> Whole:
        if isinstance(table, dict):
            return cls(table, list(table), list(table.values()), name)
        return cls(table, None, list(table), name)

    @property
    def moved(self) -> bool:
        now = Whole.of(self.table, "")
        try:
            return now.values != self.values or now.keys != self.keys
        except (RuntimeError, ValueError):  # two tensors, or two arrays, were asked whether they are equal
            return True

    @property
    def changed(self) -> bool:
        """The same of values, one by one: 1 is not True."""
        now = Whole.of(self.table, "")
        return (
            now.keys != self.keys
            or len(now.values) != len(self.values)
            or any(a is not b and not same(a, b) for a, b in zip(now.values, self.values, strict=True))
        )

    def put_back(self) -> None:
        if self.keys is None:
            self.table.clear()
            self.table.extend(self.values)
        else:
            self.table.clear()
            self.table.update(zip(self.keys, self.values, strict=True))


@dataclass
class Sources:
    """``slots`` are (table, key, value, name); ``sizes`` are tables with their length; ``empty`` are tables that held
    nothing, and ``hooks`` (table, key, value, name) those of torch's that held no hook; ``arrays`` are numpy arrays
    with their bytes, and ``objects`` keeps what lies in those of objects; ``sets`` are sets with a copy; ``functions``
    are users' functions with what they are made of;
    ``tensors`` are those that are no parameter and no buffer, by name. ``keys`` are what a table held, by its id;
    ``counted`` which of its names count, and those that it held of them; ``iterators`` are names of what says another
    thing whenever it is asked for its next; ``wholes`` are containers too long to be remembered value by value, and
    ``partly`` the names of those of which not everything is remembered (as keys, in order); ``modules`` are those that
    are no part of the model, by name, ``optimizers`` whatever trains;
    ``systems``: a ``random.SystemRandom`` is in reach."""

    slots: list[tuple[Any, Any, Any, str]] = field(default_factory=list)
    sizes: list[tuple[Any, int, str]] = field(default_factory=list)
    empty: list[tuple[Any, str]] = field(default_factory=list)
    hooks: list[tuple[Any, Any, Any, str]] = field(default_factory=list)
    cells: list[tuple[CellType, Any, str]] = field(default_factory=list)
    arrays: list[tuple[Any, bytes, str]] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)
    sets: list[tuple[set[Any], frozenset[Any], str]] = field(default_factory=list)
    functions: list[tuple[FunctionType, tuple[Any, ...], str]] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    keys: dict[int, frozenset[Any]] = field(default_factory=dict)
    counted: dict[int, tuple[Callable[[Any], bool], frozenset[Any]]] = field(default_factory=dict)
    generators: list[tuple[str, Any]] = field(default_factory=list)
    iterators: list[str] = field(default_factory=list)
    wholes: list[Whole] = field(default_factory=list)
    partly: dict[str, None] = field(default_factory=dict)
    modules: list[tuple[str, torch.nn.Module]] = field(default_factory=list)
    systems: bool = False
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    # lists that were found in the places of others, by the ids of those
    replaced: dict[int, list[Any]] = field(default_factory=dict)

    def ready(self) -> Sources:
        """A name of its own for each place, and flat lists."""
        self._name_apart()
        self._ordered = self._tables_that_swap()
        self._flatten()
        return self

    def without(self, places: Mapping[int, frozenset[Any]]) -> Sources:
        """Itself, which looks no more at these places: keys by the id of what holds them. Whether there is anything in
        them is no matter either."""
        if not places:
            return self

        def left_out(table: Any, key: Any) -> bool:
            owner, key = place(table, key)
            return owner in places and key in places[owner]

        self.slots = [row for row in self.slots if not left_out(row[0], row[1])]
        self.cells = [row for row in self.cells if not left_out(OfCell(row[0]), "contents")]
        filled = [row for row in self.empty if id(row[0]) in places]
        self.empty = [row for row in self.empty if id(row[0]) not in places]
        for table, name in filled:
            self.sizes.append((table, len(table), name))
            self.keys[id(table)] = frozenset()
        for table, _, _ in self.sizes:
            owner, _ = place(table, None)
            if owner in places and not isinstance(table, list | deque):
                counts, _ = self.counted.get(id(table), (lambda key: True, None))
                mine = _but(counts, places[owner])
                self.counted[id(table)] = mine, frozenset(filter(mine, table))
        self._ordered = self._tables_that_swap()
        self._flatten()
        return self

    def _flatten(self) -> None:
        """What the pass before every step goes over."""
        self._places = Places((table, key, value) for table, key, value, _ in self.slots)
        self._tables = [table.view if isinstance(table, OfClass) else table for table, _, _ in self.sizes]
        self._lengths = [length for _, length, _ in self.sizes]
        self._newest = self._newest_now()
        self._held = [cell for cell, _, _ in self.cells]
        self._contents = [value for _, value, _ in self.cells]
        self._nothing = [*(table for table, _ in self.empty), *(table for _, _, table, _ in self.hooks)]
        self._registered = RemovableHandle.next_id
        self._functions = [function for function, _, _ in self.functions]
        self._made_of = [part for _, parts, _ in self.functions for part in parts]

    def _name_apart(self) -> None:
        """Two closures of one function hold variables of one name; a program is found by what each of them says."""
        seen: Counter[str] = Counter()
        for places in (self.slots, self.cells, self.arrays, self.sets):
            for i, (*rest, name) in enumerate(places):
                seen[name] += 1
                if seen[name] > 1:
                    places[i] = (*rest, f"{name} ({seen[name]})")  # type: ignore[call-overload]
        for i, whole in enumerate(self.wholes):
            seen[whole.name] += 1
            if seen[whole.name] > 1:
                self.wholes[i] = replace(whole, name=f"{whole.name} ({seen[whole.name]})")

    def moved(self) -> bool:
        """Whether anything is not what it was. Equal values that are other objects count here; ``changes`` knows.

        A table of hooks that another one has taken the place of is not looked up here: torch counts what is registered
        anywhere.
        """
        try:
            return (
                not self._places.same()
                or any(self._nothing)
                or RemovableHandle.next_id != self._registered
                or list(map(len, self._tables)) != self._lengths
                or self._newest_now() != self._newest
                or any(c.cell_contents is not v for c, v in zip(self._held, self._contents, strict=True))
                or not all(map(operator.is_, self._made_of_now(), self._made_of))
                or any(a.tobytes() != b for a, b, _ in self.arrays)
                or any(s != then for s, then, _ in self.sets)
                or any(whole.moved for whole in self.wholes)
            )
        except (
            KeyError,
            IndexError,
            ValueError,
            TypeError,
            RuntimeError,
        ):  # one is gone, or does not like to be compared
            return True

    def _newest_now(self) -> list[Any]:
        """The last key of each table that has an order: one goes and another comes, and the length stays."""
        return list(map(next, map(reversed, self._ordered), repeat(None)))

    def _tables_that_swap(self) -> list[Any]:
        """Those of which one name may go unseen as another comes: they hold what nobody looks at."""
        looked_at: dict[int, set[Any]] = {}
        for table, key, _, _ in chain(self.slots, self.hooks):
            looked_at.setdefault(id(table), set()).add(key)
        return [
            table.view if isinstance(table, OfClass) else table
            for table, _, _ in self.sizes
            if isinstance(table, dict | OfClass | MappingProxyType)
            and not _names(table) <= looked_at.get(id(table), set())
        ]

    def function(self, function: FunctionType, name: str) -> None:
        self.functions.append((function, _MADE_OF(function), name))

    def _made_of_now(self) -> Iterator[Any]:
        return chain.from_iterable(map(_MADE_OF, self._functions))

    def _grown(self, table: Any, length: int) -> bool:
        """Whether it holds more or less than it did, of names that count."""
        if id(table) not in self.counted:
            return len(table) != length
        counts, then = self.counted[id(table)]
        return frozenset(filter(counts, table)) != then

    def _swapped(self, table: Any) -> bool:
        """Whether it holds other names than it did; of one whose names count in part that is asked of those."""
        held = None if id(table) in self.counted else self.keys.get(id(table))
        return held is not None and frozenset(table) != held

    def changes(self) -> dict[str, tuple[Any, Any]]:
        """What is not what it was: name -> (then, now). Takes values that are equal as they are."""
        found: dict[str, tuple[Any, Any]] = {}
        gone: set[int] = set()  # tables of which a place that was looked at is gone
        for table, key, then, name in self.slots:
            try:
                now = table[key]
            except (KeyError, IndexError):
                now = ABSENT
                gone.add(id(table))
            if now is not then and not same(then, now):
                items = self._items(then, now)
                if items is None:
                    found[name] = (then, None if now is ABSENT else now)
                else:
                    found |= items
                    self.replaced[id(then)] = table[key]
        for table, length, name in self.sizes:
            if self._grown(table, length) or (id(table) not in gone and self._swapped(table)):
                found[f"the size of {name}"] = (length, len(table))
        for function, then, name in self.functions:
            if any(map(operator.is_not, _MADE_OF(function), then)):
                was, now = _made_of(then), _made_of(_MADE_OF(function))
                if was is None or was != now:
                    found[f"what {name} is made of"] = (was, now or function)
        for table, name in self.empty:
            if table:
                found[f"the size of {name}"] = (0, len(table))
        for table, key, _, name in self.hooks:
            if table.get(key):
                found[f"the size of {name}"] = (0, len(table[key]))
        for cell, then, name in self.cells:
            try:
                now = cell.cell_contents
            except ValueError:
                now = None
            if now is not then and not same(then, now):
                found[name] = (then, now)
        for array, then_bytes, name in self.arrays:
            now_bytes = array.tobytes()
            if now_bytes != then_bytes:
                found[name] = (_digest(then_bytes), _digest(now_bytes))
        for now_set, then_set, name in self.sets:
            if now_set != then_set:
                found[name] = (_members(then_set), _members(now_set))
        for whole in self.wholes:
            if whole.changed:
                found[whole.name] = (whole.values, whole.table)
        return found

    def _items(self, then: Any, now: Any) -> dict[str, tuple[Any, Any]] | None:
        """What moved of a list of numbers in whose place another of that length stands, by the names of its places;
        None where it is no such list. (A schedule makes a new list of its learning rates in every step.)"""
        if not (type(then) is type(now) is list and len(then) == len(now)):
            return None
        if not all(isinstance(value, PLAIN) for value in (*then, *now)):
            return None
        names = {key: name for table, key, _, name in self.slots if table is then}
        holders = [v for _, _, v, _ in self.slots if v is then] + [v for _, v, _ in self.cells if v is then]
        if len(names) != len(then) or len(holders) != 1:
            return None
        pairs = enumerate(zip(then, now, strict=True))
        return {names[i]: (was, value) for i, (was, value) in pairs if not same(was, value)}

    def are_values(self, changes: Mapping[str, tuple[Any, Any]]) -> bool:
        """Whether these are plain values in the places of plain values, and nothing else. A place that is gone (of a
        slot, of what a weak reference led to) has none."""
        places = {name for *_, name in self.cells}
        places |= {name for t, k, _, name in self.slots if name in changes and has(t, k)}
        return changes.keys() <= places and all(
            isinstance(value, PLAIN) for pair in changes.values() for value in pair
        )

    def refresh(self) -> None:
        """What stands in the places now is what is known."""
        if self.replaced:
            stands: dict[int, Any] = dict(self.replaced)
            self.replaced.clear()
            self.slots = [(stands.get(id(t), t), k, v, n) for t, k, v, n in self.slots]
            self.sizes = [(stands.get(id(t), t), length, n) for t, length, n in self.sizes]
        self.slots = [(t, k, t[k], n) for t, k, _, n in self.slots]
        grown = any(len(t) != length for t, length, _ in self.sizes)
        self.sizes = [(t, len(t), n) for t, _, n in self.sizes]
        if grown:  # by a name that nobody looks at
            self._ordered = self._tables_that_swap()
        self.functions = [(f, _MADE_OF(f), n) for f, _, n in self.functions]
        self.hooks = [(t, k, t[k], n) for t, k, _, n in self.hooks]
        self.cells = [(c, c.cell_contents, n) for c, _, n in self.cells]
        self.wholes = [Whole.of(whole.table, whole.name) for whole in self.wholes]
        self._flatten()

    def written(self) -> tuple[list[Write], list[str]]:
        """The plain values that the code wrote since, as a step of eager would have, and the names of what it changed
        in a way that no step repeats: tables that it made longer or shorter, arrays, sets."""
        writes = [
            Write(table, key, bare(now), name, by(then, now))
            for table, key, then, now, name in self._moved_places()
            if isinstance(now, PLAIN) and isinstance(then, PLAIN) and not same(then, now)
        ]
        changed = []
        for table, length, name in self.sizes:
            if isinstance(table, deque):
                # One that is full keeps its length: what it lets go of at one end is every value's place.
                if len(table) != length or any(
                    t is table and t[key] is not then for t, key, then, _ in self.slots
                ):
                    changed.append(name)
            elif isinstance(table, list):
                changed += [name] if len(table) != length else []
            elif isinstance(table, dict) and id(table) not in self.counted and self._lost(table):
                changed.append(name)
        for table, name, fresh in self._fresh():
            writes += [Write(table, k, table[k], f"{name}.{k}") for k in fresh if isinstance(table[k], PLAIN)]
        changed += [name for now, then, name in self.sets if now != then]
        changed += [name for array, then, name in self.arrays if array.tobytes() != then]
        changed += [whole.name for whole in self.wholes if whole.moved]
        return [w for w in writes if not isinstance(w.table, deque)], changed

    def _moved_places(self) -> Iterator[tuple[Any, Any, Any, Any, str]]:
        """(table, key, then, now, name) of places that hold another object."""
        for table, key, then, name in self.slots:
            if has(table, key) and table[key] is not then:
                yield table, key, then, table[key], name
        for cell, then, name in self.cells:
            table = OfCell(cell)
            if table["contents"] is not then:
                yield table, "contents", then, table["contents"], name

    def _fresh(self) -> Iterator[tuple[Any, str, list[Any]]]:
        """Dictionaries and classes with the keys that came to them."""
        for table, _, name in self.sizes:
            if isinstance(table, dict | OfClass):
                yield table, name, [k for k in table if k not in self.keys[id(table)]]
        for table, name in self.empty:
            yield table, name, list(table)

    def _lost(self, table: dict[Any, Any]) -> bool:
        return any(key not in table for key in self.keys[id(table)])

    def left(self) -> Iterator[tuple[Any, Any, Any, Any, str]]:
        """(table, key, then, now, name) of tensors, and numbers of theirs, that the code left in Python's places; None
        where nothing was."""
        for table, key, then, now, name in self._moved_places():
            if holds_trace(now):
                yield table, key, then, now, name
        for table, name, fresh in self._fresh():
            for key in fresh:
                if holds_trace(table[key]):
                    yield table, key, None, table[key], f"{name}[{key!r}]"

    def put_back(self) -> None:
        """Every value where it was, after a trace has run the model's code."""
        for whole in self.wholes:
            if whole.moved:
                whole.put_back()
        for table, length, _ in self.sizes:
            if isinstance(table, list | deque) and len(table) < length:
                then = [value for t, _, value, _ in self.slots if t is table]
                if len(then) == length:
                    table.clear()
                    table.extend(then)
        for table, key, then, _ in self.slots:
            if not has(table, key) or table[key] is not then:
                put(table, key, then)
        for cell, then, _ in self.cells:
            if cell.cell_contents is not then:
                cell.cell_contents = then
        for table, length, _ in self.sizes:
            if isinstance(table, list):
                if len(table) > length:  # one of a fixed length does not take even an empty slice out
                    del table[length:]
            elif isinstance(table, deque):
                while len(table) > length:
                    table.pop()
        for table, _, fresh in self._fresh():
            for key in fresh:
                del table[key]
        for array, then_bytes, _ in self.arrays:
            if array.tobytes() != then_bytes:
                _fill(array, then_bytes)
        for now, then, _ in self.sets:
            if now != then:
                now.clear()
                now.update(then)


def _names(table: Any) -> set[Any]:
    """Those of a table that may go."""
    return set(table) - _OF_EVERY_MODULE if "_parameters" in table else set(table)


def _but(counts: Callable[[Any], bool], names: frozenset[Any]) -> Callable[[Any], bool]:
    return lambda key: key not in names and counts(key)


# How deep a container, or an object, is looked into for tensors.
DEPTH = 6


def found_in(value: Any, kinds: Any, depth: int = DEPTH) -> Iterator[Any]:
    """What of these ``kinds`` is in a value: in Python's containers, and in the attributes of an object."""
    if isinstance(value, kinds):
        yield value
    elif depth and not isinstance(value, (*PLAIN, type, torch.nn.Module, FunctionType, ModuleType)):
        for item in _inside(value):
            yield from found_in(item, kinds, depth - 1)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    return found_in(value, torch.Tensor)


def holds_trace(value: Any, depth: int = DEPTH) -> bool:
    """Whether a tensor, or a number that was read of one, is in a value."""
    return next(found_in(value, OF_A_TRACE, depth), None) is not None


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | deque | set | frozenset):
        return value
    found = getattr(value, "__dict__", None)
    return list(found.values()) if isinstance(found, dict) else ()


def _fill(array: Any, content: bytes) -> None:
    if not isinstance(array, np.ndarray):
        array[:] = type(array)(array.typecode, content)
    elif array.dtype != object and array.flags.writeable:
        array[...] = np.frombuffer(content, array.dtype).reshape(array.shape)


def _made_of(parts: tuple[Any, ...]) -> str | None:
    """In words, where two that are equal do the same."""
    code, positional, named = parts
    given = [*(positional or ()), *(named or {}).values()]
    return repr((id(code), positional, named)) if all(isinstance(v, PLAIN) for v in given) else None


def _digest(content: bytes) -> str:
    return f"values {hashlib.blake2b(content, digest_size=8).hexdigest()}"


def _members(members: Iterable[Any]) -> str:
    return f"members {sorted(map(repr, members))}"


def named(changes: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    """Lines for a user: what moved, from what to what."""
    for name, (then, now) in changes.items():
        yield f"{name}: {_short(then)} -> {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
