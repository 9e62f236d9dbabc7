"""What a program was captured from besides tensors: everything in Python that the model and the loss can reach.

A captured program is a copy of what Python said at the time: ``self.beta``, ``cfg["w"]``, a global, what a closure
holds. ``Sources`` walks over all of it once and remembers each value with the table that holds it, so that asking
before every step whether anything moved is one pass over flat lists.

Code of libraries is not walked into (their objects are, where the model or the loss holds them). How it can fail: a
value behind ``__getattr__``, a slot, a database, the clock: what no table of Python's holds.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import os
import random
import sys
import types
from collections import Counter, UserDict, UserList, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from detente.bridge.live.python import PLAIN, in_library, names_in

# Tables of a module that are watched by themselves: tensors, children, the training flag.
_SKIPPED = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"})
# Values, at most: a model that holds a whole data set is not walked through.
MOST = 50_000
ABSENT = object()


@dataclass
class Sources:
    """``slots`` are (table, key, value, name); ``sizes`` are tables with their length; ``empty`` are tables that held
    nothing (hooks, above all); ``arrays`` are numpy arrays with their bytes, ``sets`` are sets with a copy;
    ``tensors`` are those that are no parameter and no buffer, by name."""

    slots: list[tuple[Any, Any, Any, str]] = field(default_factory=list)
    sizes: list[tuple[Any, int, str]] = field(default_factory=list)
    empty: list[tuple[Any, str]] = field(default_factory=list)
    cells: list[tuple[types.CellType, Any, str]] = field(default_factory=list)
    arrays: list[tuple[np.ndarray, bytes, str]] = field(default_factory=list)
    sets: list[tuple[set[Any], frozenset[Any], str]] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    keys: dict[int, frozenset[Any]] = field(default_factory=dict)
    generators: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []

    def ready(self) -> Sources:
        """Flat lists for the pass before every step, and a name of its own for each place."""
        self._name_apart()
        self._pairs = [(table, key) for table, key, _, _ in self.slots]
        self._values = [value for _, _, value, _ in self.slots]
        self._tables = [table for table, _, _ in self.sizes]
        self._lengths = [length for _, length, _ in self.sizes]
        self._held = [cell for cell, _, _ in self.cells]
        self._contents = [value for _, value, _ in self.cells]
        self._nothing = [table for table, _ in self.empty]
        return self

    def _name_apart(self) -> None:
        """Two closures of one function hold variables of one name; a program is found by what each of them says."""
        seen: Counter[str] = Counter()
        for places in (self.slots, self.cells, self.arrays, self.sets):
            for i, (*rest, name) in enumerate(places):
                seen[name] += 1
                if seen[name] > 1:
                    places[i] = (*rest, f"{name} ({seen[name]})")  # type: ignore[call-overload]

    def moved(self) -> bool:
        """Whether anything is not what it was. Equal values that are other objects count here; ``changes`` knows."""
        try:
            return (
                any(a is not b for a, b in zip([t[k] for t, k in self._pairs], self._values, strict=True))
                or any(self._nothing)
                or list(map(len, self._tables)) != self._lengths
                or any(c.cell_contents is not v for c, v in zip(self._held, self._contents, strict=True))
                or any(a.tobytes() != b for a, b, _ in self.arrays)
                or any(s != then for s, then, _ in self.sets)
            )
        except (KeyError, IndexError, ValueError):
            return True

    def changes(self) -> dict[str, tuple[Any, Any]]:
        """What is not what it was: name -> (then, now). Takes values that are equal as they are."""
        found: dict[str, tuple[Any, Any]] = {}
        for table, key, then, name in self.slots:
            try:
                now = table[key]
            except (KeyError, IndexError):
                now = ABSENT
            if now is not then and not same(then, now):
                found[name] = (then, None if now is ABSENT else now)
        for table, length, name in self.sizes:
            if len(table) != length:
                found[f"the size of {name}"] = (length, len(table))
        for table, name in self.empty:
            if table:
                found[f"the size of {name}"] = (0, len(table))
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
        return found

    def are_values(self, changes: Mapping[str, tuple[Any, Any]]) -> bool:
        """Whether these are plain values in the places of plain values, and nothing else."""
        places = {name for *_, name in (*self.slots, *self.cells)}
        return changes.keys() <= places and all(
            isinstance(value, PLAIN) for pair in changes.values() for value in pair
        )

    def refresh(self) -> None:
        """What stands in the places now is what is known."""
        self._values = [table[key] for table, key in self._pairs]
        self._contents = [cell.cell_contents for cell in self._held]
        self.slots = [(t, k, v, n) for (t, k, _, n), v in zip(self.slots, self._values, strict=True)]
        self.cells = [(c, v, n) for (c, _, n), v in zip(self.cells, self._contents, strict=True)]

    def written(self) -> tuple[list[Write], list[str]]:
        """The plain values that the code wrote since, as a step of eager would have, and the names of tables that it
        made longer by something else."""
        writes = [
            Write(table, key, _bare(table[key]), name, _by(then, table[key]))
            for table, key, then, name in self.slots
            if _has(table, key)
            and table[key] is not then
            and isinstance(table[key], PLAIN)
            and isinstance(then, PLAIN)
            and not same(then, table[key])
        ]
        grown = []
        for table, length, name in self.sizes:
            if isinstance(table, deque):
                # One that is full keeps its length: what it lets go of at one end is every value's place.
                if len(table) != length or any(
                    t is table and t[key] is not then for t, key, then, _ in self.slots
                ):
                    grown.append(name)
            elif isinstance(table, list) and len(table) > length:
                grown.append(name)
            elif isinstance(table, dict):
                fresh = [k for k in table if k not in self.keys[id(table)]]
                writes += [
                    Write(table, k, table[k], f"{name}.{k}") for k in fresh if isinstance(table[k], PLAIN)
                ]
        grown += [name for now, then, name in self.sets if now != then]
        return [w for w in writes if not isinstance(w.table, deque)], grown

    def put_back(self) -> None:
        """Every value where it was, after a trace has run the model's code."""
        for table, key, then, _ in self.slots:
            if not _has(table, key) or table[key] is not then:
                _put(table, key, then)
        for table, length, _ in self.sizes:
            if isinstance(table, list):
                del table[length:]
            elif isinstance(table, deque):
                while len(table) > length:
                    table.pop()
            elif isinstance(table, dict) and len(table) > length:
                for key in [k for k in table if k not in self.keys[id(table)]]:
                    del table[key]
        for now, then, _ in self.sets:
            if now != then:
                now.clear()
                now.update(then)


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
        if self.by is not None and self.name in counted and _has(self.table, self.key):
            return self.table, self.key, self.table[self.key] + self.by
        return self.table, self.key, self.value


def put(due: tuple[Any, Any, Any]) -> None:
    """What ``Write.due`` said; may be done twice."""
    _put(*due)


def _bare(value: Any) -> Any:
    """An integer itself, of one that notes what is asked of it."""
    return value if type(value) in PLAIN or not isinstance(value, int) else int.__add__(value, 0)


def _by(then: Any, now: Any) -> int | None:
    counts = isinstance(then, int) and isinstance(now, int) and not isinstance(then, bool)
    return int.__sub__(now, then) if counts else None


def _digest(content: bytes) -> str:
    return f"values {hashlib.blake2b(content, digest_size=8).hexdigest()}"


def _members(members: Iterable[Any]) -> str:
    return f"members {sorted(map(repr, members))}"


def _has(table: Any, key: Any) -> bool:
    return key < len(table) if isinstance(table, list | deque) else key in table


def _put(table: Any, key: Any, value: Any) -> None:
    if isinstance(table, types.MappingProxyType):
        return  # a class: nothing of a trace is taken back there
    if not isinstance(table, list | deque) or key < len(table):
        table[key] = value


class Slots:
    """What an object keeps in ``__slots__``, as a table."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        named = (vars(kind).get("__slots__", ()) for kind in type(owner).__mro__)
        self.names = [
            n
            for found in named
            for n in ((found,) if isinstance(found, str) else tuple(found))
            if not n.startswith("__")
        ]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and hasattr(self.owner, name)

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self.owner, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self.owner, name, value)  # past what a frozen dataclass forbids

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self.names if name in self]


def same(then: Any, now: Any) -> bool:
    """Whether two objects are one value of Python's."""
    if type(then) is not type(now) or not isinstance(then, PLAIN):
        return False
    if isinstance(then, int):  # of a number that notes what is asked of it (capture/counters.py), unasked
        return bool(int.__eq__(then, now))
    return then == now or repr(then) == repr(now) == "nan"


def sources(model: nn.Module, loss: Any, ran: Names | None = None) -> Sources:
    """Everything that the model's parts and the loss function reach. ``ran``: of attributes only those that the code
    that ran has a name for; a trainer that the loss can reach counts its steps, and no program depends on that."""
    walk = _Walk(model, ran)
    for path, part in model.named_modules():
        walk.attributes(part, f"model.{path}" if path else "model")
        walk.kind(type(part))
    walk.value(loss, "loss")
    return walk.found.ready()


@contextmanager
def standing_for(
    model: nn.Module, loss: Any, tensors: Mapping[str, torch.Tensor], ran: Names | None
) -> Iterator[None]:
    """A 0-d tensor in the place of each number that is named, while the block runs: what is captured meanwhile
    reads it as an input."""
    found = sources(model, loss, ran) if tensors else Sources()
    slots = [(t, k, v, n) for t, k, v, n in found.slots if n in tensors and type(v) is float]
    cells = [(c, v, n) for c, v, n in found.cells if n in tensors and type(v) is float]
    try:
        for table, key, _, name in slots:
            _put(table, key, tensors[name])
        for cell, _, name in cells:
            cell.cell_contents = tensors[name]
        yield
    finally:
        for table, key, value, _ in slots:
            _put(table, key, value)
        for cell, value, _ in cells:
            cell.cell_contents = value


@dataclass(frozen=True)
class Names:
    """The names in the code that ran while a program was captured. ``any`` where a user's function among it makes up
    names of attributes itself."""

    names: frozenset[str] = frozenset()
    any: bool = False

    def __or__(self, other: Names) -> Names:
        return Names(self.names | other.names, self.any or other.any)

    def __contains__(self, name: object) -> bool:
        return self.any or name in self.names


class Ran:
    """Notes every function that runs."""

    def __init__(self) -> None:
        self._codes: set[types.CodeType] = set()

    def __enter__(self) -> Ran:
        self._before = sys.getprofile()
        add = self._codes.add

        def seen(frame: Any, event: str, argument: Any) -> None:
            if event == "call":
                add(frame.f_code)

        sys.setprofile(seen)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def names(self) -> Names:
        """Everything that the code calls by a name, and every string in it (``getattr(self, "beta")``)."""
        found = frozenset(
            name
            for code in filter(_may_ask, self._codes)
            for name in (*code.co_names, *(c for c in code.co_consts if isinstance(c, str)))
        )
        making = {"getattr", "vars", "__dict__", "attrgetter"}
        users = (c for c in self._codes if not in_library(c.co_filename))
        return Names(found, any(making & set(c.co_names) for c in users))


# Code that asks for nothing of a user's objects: Python's own, numpy's, JAX's and ours, and of torch's all but its
# modules.
_PYTHON = (str(Path(types.__file__ or "types").parent), "<frozen")
_OTHERS = tuple(
    str(Path(file or "").parent) + os.sep
    for file in (torch.__file__, np.__file__, jax.__file__, str(Path(__file__).parent))
)
_MODULES = tuple(str(Path(part.__file__ or "").parent) + os.sep for part in (torch.nn, torch.distributions))


def _may_ask(code: types.CodeType) -> bool:
    file = code.co_filename
    if file.startswith(_MODULES):
        return True
    if file.startswith(_OTHERS):
        return False
    return "site-packages" in file or "dist-packages" in file or not file.startswith(_PYTHON)


class _Walk:
    def __init__(self, model: nn.Module, ran: Names | None) -> None:
        self.ran = ran
        self.found = Sources()
        self.seen: set[int] = set()
        self.kept: list[Any] = []
        self.parts = {id(part) for part in model.modules()}
        self.known = {id(t) for t in (*model.parameters(), *model.buffers())}
        self.left = MOST

    def table(self, table: dict[Any, Any], name: str) -> None:
        """A dictionary: its size, and each of its values."""
        if not table:
            self.found.empty.append((table, name))
            return
        self._size(table, name)
        for key, value in list(table.items()):
            self._slot(table, key, value, f"{name}[{key!r}]")

    def attributes(self, owner: Any, name: str) -> None:
        """What an object holds under the names that were asked for; of a module also that nothing came to it."""
        table = vars(owner)
        if isinstance(owner, nn.Module) or self.ran is None:
            self._size(table, name)
        for key, value in list(table.items()):
            if not (isinstance(owner, nn.Module) and key in _SKIPPED) and self._asked_for(key):
                self._slot(table, key, value, f"{name}.{key}")

    def _size(self, table: dict[Any, Any], name: str) -> None:
        self.found.sizes.append((table, len(table), name))
        self.found.keys[id(table)] = frozenset(table)

    def _asked_for(self, key: str) -> bool:
        return self.ran is None or key in self.ran

    def _slot(self, table: Any, key: Any, value: Any, name: str) -> None:
        if self.left <= 0:
            return
        self.left -= 1
        self.found.slots.append((table, key, value, name))
        self.value(value, name)

    def value(self, value: Any, name: str) -> None:
        """What a value holds. A plain one holds nothing."""
        if isinstance(value, (*PLAIN, enum.Enum, types.BuiltinFunctionType)) or id(value) in self.seen:
            return
        self.seen.add(id(value))
        self.kept.append(value)  # an id is one object's for as long as it lives
        if isinstance(value, torch.Tensor):
            if id(value) not in self.known:
                same_name = sum(
                    known == name or known.startswith(f"{name} (") for known in self.found.tensors
                )
                self.found.tensors[f"{name} ({same_name + 1})" if same_name else name] = value
        elif isinstance(value, np.ndarray):
            if value.dtype != object:
                self.found.arrays.append((value, value.tobytes(), name))
        elif isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
            self.found.generators.append((name, value))
        elif isinstance(value, dict):
            self.table(value, name)
        elif isinstance(value, UserDict | UserList):
            self.value(value.data, name)
        elif isinstance(value, list | deque):
            self.found.sizes.append((value, len(value), name))
            for i, item in enumerate(value):
                self._slot(value, i, item, f"{name}[{i}]")
        elif isinstance(value, tuple | set | frozenset):
            if isinstance(value, set):
                self.found.sets.append((value, frozenset(value), name))
            for i, item in enumerate(value):
                self.value(item, f"{name}[{i}]")
        elif isinstance(value, functools.partial):
            for part, what in (
                (value.func, "function"),
                (value.args, "arguments"),
                (value.keywords, "keywords"),
            ):
                self.value(part, f"{name}'s {what}")
        elif isinstance(value, nn.Module):
            self._module(value, name)
        elif isinstance(value, types.MethodType):
            self.value(value.__self__, name)
            self.value(value.__func__, name)
        elif isinstance(value, types.FunctionType):
            self.function(value, name)
        elif isinstance(value, type):
            self.kind(value)
        elif not isinstance(value, (types.ModuleType, torch.Generator, *_ELSEWHERE)) and not _is_ours(value):
            self._object(value, name)

    def _module(self, module: nn.Module, name: str) -> None:
        """A module that is no part of the model: a teacher in a closure."""
        if id(module) in self.parts:
            return
        for path, part in module.named_modules():
            where = f"{name}.{path}" if path else name
            self.parts.add(id(part))
            self.attributes(part, where)
            self.found.slots.append((vars(part), "training", part.training, f"{where}.training"))
            for table in (part._parameters, part._buffers):
                for key, tensor in table.items():
                    self._slot(table, key, tensor, f"{where}.{key}")

    def function(self, function: types.FunctionType, name: str) -> None:
        """Closure and defaults; of a user's function also the globals that it names."""
        for cell, variable in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            if id(cell) in self.seen:
                continue
            self.seen.add(id(cell))
            try:
                held = cell.cell_contents
            except ValueError:
                continue
            self.found.cells.append((cell, held, f"{variable} of {function.__qualname__}"))
            self.value(held, f"{variable} of {function.__qualname__}")
        for part in (function.__defaults__, function.__kwdefaults__):
            self.value(part, f"{name}'s default")
        if in_library(function.__code__.co_filename):
            return
        for variable in sorted(set(names_in(function.__code__))):
            if variable in function.__globals__:
                held = function.__globals__[variable]
                if isinstance(held, types.ModuleType):
                    self._of_module(held, variable, function.__code__)
                else:
                    self._slot(function.__globals__, variable, held, f"global {variable}")

    def _of_module(self, module: types.ModuleType, name: str, code: types.CodeType) -> None:
        """What a user's function asks of a user's module (``config.beta``)."""
        if in_library(getattr(module, "__file__", None)) or not getattr(module, "__file__", None):
            return
        for key in sorted(set(names_in(code)) & vars(module).keys()):
            held = vars(module)[key]
            if isinstance(held, types.ModuleType):
                if id(held) not in self.seen:
                    self.seen.add(id(held))
                    self._of_module(held, f"{name}.{key}", code)
            else:
                self._slot(vars(module), key, held, f"{name}.{key}")

    def kind(self, kind: type) -> None:
        """A user's class: what its methods name, and what it holds itself."""
        if id(kind) in self.seen:
            return
        self.seen.add(id(kind))
        self.kept.append(kind)
        for part in kind.__mro__:
            if part.__module__ == "builtins" or in_library(_file_of(part)):
                continue
            for name, value in list(vars(part).items()):
                inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
                inner = value.fget if isinstance(value, property) else inner
                if isinstance(inner, types.FunctionType):
                    # The method itself, too: somebody may put another one there.
                    self.found.slots.append((vars(part), name, value, f"{part.__qualname__}.{name}"))
                    self.value(inner, f"{part.__qualname__}.{name}")
                elif isinstance(value, (*PLAIN, dict, list)) and not name.startswith("__"):
                    self.found.slots.append((vars(part), name, value, f"{part.__qualname__}.{name}"))
                    self.value(value, f"{part.__qualname__}.{name}")

    def _object(self, value: Any, name: str) -> None:
        """Any other object: its own table, and its slots."""
        if isinstance(getattr(value, "__dict__", None), dict):
            self.attributes(value, name)
        slots = Slots(value)
        self.kept.append(slots)
        for key, held in slots.items():
            if self._asked_for(key):
                self._slot(slots, key, held, f"{name}.{key}")
        self.kind(type(value))


# What trains, not what is trained: their numbers move with every step.
_ELSEWHERE = (
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.utils.data.DataLoader,
    torch.utils.data.Dataset,
)


def _is_ours(value: Any) -> bool:
    return type(value).__module__.startswith("detente.")


def _file_of(kind: type) -> str | None:
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def named(changes: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    """Lines for a user: what moved, from what to what."""
    for name, (then, now) in changes.items():
        yield f"{name}: {_short(then)} -> {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
