"""The walk over everything in Python that a model's parts and a loss function reach.

Code of libraries is not walked into (their objects are, where the model or the loss holds them).
"""

from __future__ import annotations

import array
import configparser
import ctypes
import functools
import gc
import io
import linecache
import logging
import operator
import os
import random
import sys
import types
import weakref
from collections import ChainMap, Counter, UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from detente.bridge.live.instructions import globals_in
from detente.bridge.live.moving_number import FLOATS, MovingNumber, standing, stands
from detente.bridge.live.places import OfClass, OfContext, OfReference, Slots, put
from detente.bridge.live.python import (
    PLAIN,
    imported,
    in_library,
    names_in,
    of_library,
    of_their_class,
    users,
)
from detente.bridge.live.ran import Names
from detente.bridge.live.sources import Sources, Whole
from detente.bridge.live.standing import Standing
from detente.bridge.live.trains import OF_OPTIMIZERS, TRAINS, numbers_of
from detente.bridge.private import plainly

# Tables of a module that are watched by themselves: tensors, children, the training flag.
_SKIPPED = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"})
# torch's own, which a step reads where there is something in them and nowhere else.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# torch's own, which no step reads, or only beside a hook in one of the above.
_UNREAD = frozenset(
    {
        "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
        "_is_full_backward_hook", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks", "_compiled_call_impl",
    }
)  # fmt: skip
# Hooks of every module.
_OF_ALL_MODULES = ("_global_forward_hooks", "_global_forward_pre_hooks")
# Containers that Python's own code reads: of their attributes every one counts.
_CONTAINERS = (
    ChainMap,
    weakref.WeakKeyDictionary,
    weakref.WeakSet,
    weakref.WeakValueDictionary,
    configparser.RawConfigParser,
)
# Functions in C that belong to an object: ``weights.get``, ``rng.random``.
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_CACHED = type(functools.lru_cache(lambda: None))
_NUMBERS = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)
# Python's and numpy's own generators, of which the capture takes care.
_SHARED = (getattr(random.random, "__self__", None), getattr(np.random.rand, "__self__", None))
# Python's own tables of what it has read, which fill by themselves.
_PYTHONS_TABLES = frozenset(map(id, (linecache.cache, sys.path_importer_cache)))
# Values, at most, of one container with all that lies in it: a longer one is compared as a whole, up to the second
# number, and is not walked through. What stands beside it is.
MOST, LONGEST = 50_000, 1_000_000
# Values of an object that trains, and bytes of an array in one: a data set holds its data.
FEW, SMALL = 1_000, 1 << 20


def sources(model: nn.Module, loss: Any, ran: Names | None = None) -> Sources:
    """Everything that the model's parts and the loss function reach. ``ran``: of attributes only those that the code
    that ran has a name for; a trainer that the loss can reach counts its steps, and no program depends on that."""
    walk = _walked(model, loss, ran)
    if ran is not None and not walk.made <= ran.names:
        walk = _walked(model, loss, replace(ran, names=ran.names | walk.made))
    return walk.found.ready()


def _walked(model: nn.Module, loss: Any, ran: Names | None) -> Walk:
    walk = Walk(model, ran)
    for path, part in model.named_modules():
        walk.attributes(part, f"model.{path}" if path else "model")
        walk.kind(type(part))
    walk.value(loss, "loss")
    for name in _OF_ALL_MODULES:
        walk.table(vars(nn.modules.module)[name], f"torch.nn.modules.module.{name}")
    if ran is not None:
        walk.standing(ran)
    walk.trainers()
    walk.kept.clear()  # what only a weak reference leads to goes when the user lets it go
    return walk


@contextmanager
def standing_for(
    model: nn.Module, loss: Any, tensors: Mapping[str, torch.Tensor], ran: Names | None
) -> Iterator[None]:
    """A number that moves in the place of each that is named, while the block runs: what is captured meanwhile reads
    the tensor that holds it as an input."""
    found = sources(model, loss, ran) if tensors else Sources()
    slots = [(t, k, v, n) for t, k, v, n in found.slots if n in tensors and type(v) in FLOATS]
    cells = [(c, v, n) for c, v, n in found.cells if n in tensors and type(v) in FLOATS]
    try:
        numbers = {name: MovingNumber(tensors[name], type(v)) for *_, v, name in (*slots, *cells)}
        for table, key, _, name in slots:
            put(table, key, numbers[name])
        for cell, _, name in cells:
            cell.cell_contents = numbers[name]
        with standing(numbers.values()):
            yield
    finally:
        for table, key, value, _ in slots:
            put(table, key, value)
        for cell, value, _ in cells:
            cell.cell_contents = value


class OfTensor:
    """A small tensor whose values a program has in it, as an array is looked at."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def tobytes(self) -> bytes:
        return plainly(lambda: self.tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())


class Walk:
    """``trains``: whether optimizers, schedulers and data sets are looked at, too."""

    def __init__(self, model: nn.Module, ran: Names | None, *, trains: bool = True) -> None:
        self.ran, self.trains = ran, trains
        self.found = Sources()
        self.seen: set[int] = set()
        self.tables: set[int] = set()
        self.kept: list[Any] = []
        self.parts = {id(part) for part in model.modules()}
        self.known = {id(t) for t in (*model.parameters(), *model.buffers())}
        self.left: int | None = None  # values that may still be remembered; None outside of every container
        self.inside = ""  # of which container, by name
        self.small = False  # inside of what trains
        self.later: list[tuple[Any, str]] = []  # what trains, for the end
        self.named: Counter[str] = Counter()  # of tensors
        self.made: set[str] = set()  # names that an object asks by, and no code: ``attrgetter("beta")``

    def standing(self, ran: Names) -> None:
        """What stands where the code that ran found it, in libraries and by names that no function in reach has. Where
        such a place was reached by another way it is looked at once."""
        standing = Standing(ran.places, ran.names)
        seen, known = 0, set[tuple[int, Any]]()
        for row in sorted(standing.rows, key=lambda row: not row.deep):
            known.update((_table_of(table), key) for table, key, *_ in self.found.slots[seen:])
            seen = len(self.found.slots)
            if (_table_of(row.table), row.key) in known:
                continue
            self.found.slots.append((row.table, row.key, row.value, row.name))
            if row.deep:
                self.value(row.value, row.name)
        for table, name in standing.tables:
            self._size(table, name, functools.partial(_holds_users, table))

    def table(self, table: dict[Any, Any], name: str) -> None:
        """A dictionary: its size, and each of its values."""
        if not table:
            self.found.empty.append((table, name))
            return
        if self._fits(table, name):
            self._size(table, name)
            self._entries(table, [(key, value, f"{name}[{key!r}]") for key, value in table.items()], name)

    def _fits(self, table: Any, name: str) -> bool:
        """Whether a container is walked through; a long one is compared as a whole, or (and that is said) by its
        length alone."""
        if len(table) <= (MOST if self.left is None else self.left):
            return True
        if self.small or not MOST < len(table) <= LONGEST:
            self.found.partly.setdefault(self.inside or name)
            self._size(table, name)
            return False
        found = Whole.of(table, name)
        self.found.wholes.append(found)
        if not all(isinstance(value, PLAIN) for value in found.values):
            self.found.partly.setdefault(name)
        return False

    def _entries(self, table: Any, entries: list[tuple[Any, Any, str]], name: str) -> None:
        """The values of one container: these first, and then what lies in them, the smallest first where it is more
        than is looked at."""
        with self._within(MOST, name):
            assert self.left is not None
            self.left -= len(entries)
            self.found.slots += [(table, key, value, where) for key, value, where in entries]
            deeper = [(v, where) for _, v, where in entries if stands(v) or not isinstance(v, PLAIN)]
            if sum(_length(value) for value, _ in deeper) > self.left:
                deeper.sort(key=lambda one: _length(one[0]))
            for value, where in deeper:
                self.value(value, where)

    @contextmanager
    def _within(self, most: int, name: str) -> Iterator[None]:
        """What is found in the block is no more than ``most`` values; what is found behind it is not counted."""
        if self.left is not None:
            yield
            return
        self.left, self.inside = most, name
        try:
            yield
        finally:
            self.left, self.inside = None, ""

    def trainers(self) -> None:
        """Optimizers, schedulers and data sets in reach: the last, and little of each, as most of what they reach is
        no business of a program's."""
        self.small = True
        while self.later:
            value, name = self.later.pop(0)
            if isinstance(value, torch.optim.Optimizer):
                self.found.optimizers.append(value)
            with self._within(FEW, name):
                self._object(value, name)

    def attributes(self, owner: Any, name: str) -> None:
        """What an object holds under the names that were asked for; of a module also that nothing came to it."""
        table = vars(owner)
        if id(table) in self.tables:
            return
        self.tables.add(id(table))
        # To a trainer many things come that nobody asks for; a module's forward need not be asked for by name.
        counts = self._counts_in(owner)
        self._size(table, name, None if isinstance(owner, nn.Module) else counts)
        skipped = _SKIPPED | _UNREAD if isinstance(owner, nn.Module) else frozenset()
        if isinstance(owner, torch.optim.Optimizer):
            skipped = OF_OPTIMIZERS
            if self._asked_for("param_groups"):
                self._groups(owner, f"{name}.param_groups")
        rows = []
        for key, value in list(table.items()):
            if key in HOOKS and skipped and not value:
                self.found.hooks.append((table, key, value, f"{name}.{key}"))
            elif key not in skipped and counts(key):
                rows.append((table, key, value, f"{name}.{key}"))
        # Where it is not everything that is looked at, what the object holds itself comes before what lies in that.
        for row in sorted(rows, key=lambda row: _length(row[2])) if self.small else rows:
            self._slot(*row)

    def _counts_in(self, owner: Any) -> Callable[[Any], bool]:
        """Which names count of an object: where something takes objects apart, its class says so of its fields; and of
        one of Python's or numpy's classes what their own code has asked for."""
        asked = self._asked()
        if self.ran is None:
            return asked
        more = self.ran.theirs if of_their_class(type(owner)) else frozenset[str]()
        if self.ran.fields and not self.ran.any:
            more |= _fields(type(owner))
        return (lambda key: key in more or asked(key)) if more else asked

    def _groups(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        """The numbers of an optimizer's groups; its state and what stands in the groups are looked after elsewhere."""
        groups, own = getattr(optimizer, "param_groups", []), vars(optimizer)
        if own.get("param_groups") is groups:  # a wrapper's may be those of the one inside
            self.found.slots.append((own, "param_groups", groups, name))
        self._size(groups, name)
        for i, group in enumerate(groups):
            self.found.slots.append((groups, i, group, f"{name}[{i}]"))
            if self.ran is None:  # a penalty over these is one over the program's parameters
                params = group.get("params", [])
                self.found.slots += [
                    (params, j, p, f"{name}[{i}]['params'][{j}]") for j, p in enumerate(params)
                ]
            for key in numbers_of(group, self._asked_for):
                self._slot(group, key, group[key], f"{name}[{i}][{key!r}]")

    def _size(self, table: Any, name: str, counts: Callable[[Any], bool] | None = None) -> None:
        self.found.sizes.append((table, len(table), name))
        if not isinstance(table, list | deque):
            self.found.keys[id(table)] = frozenset(table)
        if counts is not None:
            self.found.counted[id(table)] = counts, frozenset(filter(counts, table))

    def _asked_for(self, key: str) -> bool:
        return self._asked()(key)

    def _asked(self) -> Callable[[str], bool]:
        """Which names count where the walk is now. A table is asked for those again when it has moved, and the walk is
        elsewhere by then."""
        ran, small = self.ran, self.small
        if ran is None:
            return lambda key: True
        # What trains counts its steps in names of its own, which code that makes up names does not mean.
        return lambda key: key in (ran.names if small and key.startswith("_") else ran)

    def _slot(self, table: Any, key: Any, value: Any, name: str) -> None:
        if self.left is not None:
            if self.left <= 0:
                self.found.partly.setdefault(self.inside)
                return
            self.left -= 1
        self.found.slots.append((table, key, value, name))
        self.value(value, name)

    def value(self, value: Any, name: str) -> None:
        """What a value holds. A plain one holds nothing."""
        if stands(value):
            value = value.tensor
        if isinstance(value, PLAIN) or id(value) in self.seen or id(value) in _PYTHONS_TABLES:
            return
        if isinstance(value, type):
            self.kind(value)
            return
        self.seen.add(id(value))
        self.kept.append(value)  # an id is one object's for as long as it lives
        if isinstance(value, torch.Tensor):
            if self.small and value.nbytes > SMALL:
                self.found.partly.setdefault(name)
            elif id(value) not in self.known:
                same_name = self.named[name]
                self.named[name] += 1
                own = f"{name} ({same_name + 1})" if same_name else name
                self.found.tensors[own] = value
                if self.ran is not None and own in self.ran.values:
                    values = OfTensor(value)
                    self.found.arrays.append((values, values.tobytes(), f"the values of {own}"))
        elif self.small and isinstance(value, np.ndarray) and value.nbytes > SMALL:
            self.found.partly.setdefault(name)
        elif isinstance(value, np.ndarray | array.array):
            self.found.arrays.append((value, value.tobytes(), name))
            if isinstance(value, np.ndarray) and value.dtype == object:
                # Its bytes are where its objects lie, which is one object's place for as long as that lives.
                self.found.objects.append(value.copy())
                for i, item in enumerate(value.flat):
                    self.value(item, f"{name}[{i}]")
        elif isinstance(value, _NUMBERS) or (
            isinstance(value, memoryview) and value.c_contiguous and value.nbytes
        ):
            self.value(np.frombuffer(value, np.uint8), name)  # type: ignore[call-overload]
        elif isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
            if isinstance(value, random.SystemRandom):  # which has no state
                self.found.systems = True
            elif not any(value is shared for shared in _SHARED):
                self.found.generators.append((name, value))
        elif isinstance(value, dict | list | deque | UserDict | UserList):
            self._container(value, name)
        elif isinstance(value, tuple | set | frozenset):
            if isinstance(value, set):
                self.found.sets.append((value, frozenset(value), name))
            for i, item in enumerate(value):
                self.value(item, f"{name}[{i}]")
        elif isinstance(value, operator.attrgetter | operator.methodcaller):
            self.made.update(_strings(value.__reduce__()))
        elif isinstance(value, functools.partial):
            self.made.update(_strings(value.args))
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
        elif isinstance(value, _BOUND):
            if not isinstance(value.__self__, types.ModuleType):
                self.value(value.__self__, f"the owner of {name}")
        elif isinstance(value, types.FunctionType):
            self.function(value, name)
        elif isinstance(value, _CACHED):
            self.value(value.__wrapped__, name)
        elif isinstance(value, weakref.ref):
            self._slot(
                OfReference(value), "there", value() is not None, f"whether what {name} refers to is there"
            )
            self.value(value(), name)
        elif isinstance(value, ContextVar):
            says = OfContext(value)
            self._slot(says, "value", says["value"], f"what {name} says")
        elif isinstance(value, types.ModuleType):
            self._python_module(value, name)
        elif isinstance(value, types.MappingProxyType):
            self._behind(value, name)
        elif isinstance(value, TRAINS):
            if self.trains:
                self.later.append((value, name))
        elif not isinstance(value, (torch.Generator, *_ELSEWHERE)) and not _is_ours(value):
            if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
                self.found.iterators.append(name)
            self._object(value, name)

    def _container(self, value: Any, name: str) -> None:
        if value is sys.modules:  # which fills by itself, too
            for key, module in list(value.items()):
                if not of_library(key):
                    self._slot(value, key, module, f"{name}[{key!r}]")
            return
        if isinstance(value, dict):
            self.table(value, name)
        elif isinstance(value, UserDict | UserList):
            self.value(value.data, name)
        elif self._fits(value, name):
            self._size(value, name)
            self._entries(value, [(i, item, f"{name}[{i}]") for i, item in enumerate(value)], name)
        if not of_library(type(value).__module__):
            self._object(value, name)  # a user's class of it, with attributes of its own

    def _module(self, module: nn.Module, name: str) -> None:
        """A module that is no part of the model: a teacher in a closure. It may hold the model itself (a wrapper)."""
        for path, part in module.named_modules():
            if id(part) in self.parts:
                continue
            where = f"{name}.{path}" if path else name
            self.parts.add(id(part))
            self.found.modules.append((where, part))
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
            if isinstance(held, types.ModuleType) and not in_library(function.__code__.co_filename):
                self._of_module(held, variable, function.__code__)
        for part in (function.__defaults__, function.__kwdefaults__):
            self.value(part, f"{name}'s default")
        if in_library(function.__code__.co_filename):
            return
        self.found.function(function, name)
        self.attributes(function, name)
        named, of_module = set(names_in(function.__code__)), globals_in(function.__code__)
        if not named.isdisjoint(("environ", "getenv")):
            self.value(vars(os.environ).get("_data"), "os.environ")
        for variable in sorted(named):
            if variable in function.__globals__:
                held = function.__globals__[variable]
                if isinstance(held, types.ModuleType):
                    self._of_module(held, variable, function.__code__)
                elif variable in of_module:
                    self._slot(function.__globals__, variable, held, f"global {variable}")

        for module in imported(named, function.__globals__):
            self._of_module(module, module.__name__, function.__code__)

    def _python_module(self, module: types.ModuleType, name: str) -> None:
        """A user's module that a closure or an object holds: whatever was asked for, by whom the module was given."""
        if of_library(module.__name__):
            return
        table = vars(module)
        for key in [key for key in table if not key.startswith("__") and self._asked_for(key)]:
            self._slot(table, key, table[key], f"{name}.{key}")

    def _behind(self, view: types.MappingProxyType[Any, Any], name: str) -> None:
        """The table that a read-only view shows; that of a class is the class's."""
        for held in gc.get_referents(view):
            owner = getattr(held.get("__dict__"), "__objclass__", None) if type(held) is dict else None
            self.value(held if owner is None else owner, name)

    def _of_module(self, module: types.ModuleType, name: str, code: types.CodeType) -> None:
        """What a user's function asks of a user's module (``config.beta``), itself or by whom it gives it to."""
        if of_library(module.__name__):
            return
        asked = set(names_in(code)) | (self.ran.names if self.ran is not None else frozenset())
        for key in sorted(asked & vars(module).keys()):
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
            if part.__module__ == "builtins":
                continue
            table = OfClass(part)
            if of_library(part.__module__):
                if issubclass(part, nn.Module) and "forward" in table:  # which somebody may patch
                    self.found.slots.append(
                        (table, "forward", table["forward"], f"{part.__qualname__}.forward")
                    )
                continue
            if id(part) in self.tables:
                continue
            self.tables.add(id(part))
            self._size(table, part.__qualname__, _but_pythons(self._asked()))
            for name in table:
                self._of_class(table, name)

    def _of_class(self, table: OfClass, name: str) -> None:
        """A method, which somebody may put another one in the place of, or a value."""
        value, where = table[name], f"{table.owner.__qualname__}.{name}"
        inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        inner = value.fget if isinstance(value, property) else inner
        inner = value.func if isinstance(value, functools.cached_property) else inner
        if isinstance(inner, types.FunctionType):
            self.found.slots.append((table, name, value, where))
            self.value(inner, where)
        elif not name.startswith("__") and (isinstance(value, dict | list) or self._asked_for(name)):
            self.found.slots.append((table, name, value, where))
            self.value(inner if isinstance(value, staticmethod | classmethod) else value, where)

    def _object(self, value: Any, name: str) -> None:
        """Any other object: its own table, and its slots."""
        if isinstance(getattr(value, "__dict__", None), dict):
            before = self.ran
            self.ran = None if isinstance(value, _CONTAINERS) else before
            try:
                self.attributes(value, name)
            finally:
                self.ran = before
        slots = Slots(value)
        self.kept.append(slots)
        counts = self._counts_in(value)
        for key, held in slots.items():
            if counts(key):
                self._slot(slots, key, held, f"{name}.{key}")
        if any(key not in slots for key in filter(counts, slots.names)):  # one that is empty may be filled
            self._size(slots, name, counts)
        self.kind(type(value))


# A logger leads to every other one, torch's own among them, and those grow while a program is captured; what is logged
# decides no number.
_ELSEWHERE = (logging.Filterer, logging.LoggerAdapter, logging.Manager)


# Where a class says what its objects are made of: of a dataclass, of attrs, of pydantic, for a ``match``.
_SAYS_FIELDS = ("__dataclass_fields__", "__attrs_attrs__", "__pydantic_fields__", "__match_args__")


def _fields(kind: type) -> frozenset[str]:
    """The names of the fields of a class's objects, where it says them."""
    said = (getattr(kind, name, ()) for name in _SAYS_FIELDS)
    return frozenset(
        name
        for fields in said
        if isinstance(fields, dict | tuple)
        for name in (field if isinstance(field, str) else getattr(field, "name", None) for field in fields)
        if isinstance(name, str)
    )


def _but_pythons(counts: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: not name.startswith("__") and counts(name)


def _table_of(table: Any) -> int:
    """Which table it is, whoever shows it."""
    return id(table.owner if isinstance(table, OfClass) else table)


def _holds_users(table: Any, key: Any) -> bool:
    return users(table[key])


def _length(value: Any) -> int:
    """Of a container; 0 of what is none."""
    return len(value) if isinstance(value, dict | list | tuple | set | deque) else 0


def _strings(value: Any) -> Iterator[str]:
    """The names in what an object asks by; ``a.b`` is two."""
    if isinstance(value, str):
        yield from value.split(".")
    elif isinstance(value, tuple):
        for item in value:
            yield from _strings(item)


def _is_ours(value: Any) -> bool:
    return type(value).__module__.startswith("detente.")
