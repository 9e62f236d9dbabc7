"""What stands where a program's code found it: functions and methods of libraries, the globals that their code names,
registries of functions, flags; and what the user's code asks for by a string (``globals()["rate"]``).

Code of libraries is not walked into. But somebody may put another function in the place of one of theirs (a profiler, a
kernel, a ``functools.partial`` of ``F.cross_entropy``), register one, or switch a flag, and a program keeps what
stood there. Which places count is known by looking: those of the functions that ran while it was captured, and the
globals that their code names. Of what stands in a library the thing itself counts, and what a registry holds; what is
the user's there is walked into like the user's own code.

How it can fail: a function in C that somebody holds by another name; what an object of a library's leads to beyond its
own table; a global that code asks for by a name which it makes itself, where what stands there is more than a plain
value or a table of such.
"""

from __future__ import annotations

import dis
import functools
import logging
import math
import sys
import types
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from detente.bridge.live.instructions import (
    asks_globals,
    asks_modules,
    globals_in,
    makes_keys,
    makes_names,
    stored_globals,
    strings_in,
)
from detente.bridge.live.places import OfClass
from detente.bridge.live.python import PLAIN, names_in, of_library, of_python, tells, users
from detente.bridge.live.trains import TRAINS

# Whose functions count wherever they are called from, by the names in all code that ran: functions in C are not noted.
_EVERYWHERE = (torch, torch.Tensor, nn.functional, nn.init, math, np)
_FUNCTIONS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType, np.ufunc),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType, staticmethod, classmethod, property),
    type(functools.lru_cache(lambda: None)),
)
# What is there or is not, and holds nothing that is looked at.
_ALONE = (*PLAIN, *_FUNCTIONS, type, types.ModuleType)
# Of these what a library holds is no registry: a logger leads to every other one, a model and what trains are watched
# by themselves.
_CLOSED = (logging.Filterer, logging.LoggerAdapter, torch.Tensor, nn.Module, *TRAINS)
_OF_A_FUNCTION = 0x1  # the flag of code that is no module's and no class's (CO_OPTIMIZED)
_IMPORTS = dis.opmap["IMPORT_NAME"]
_MOST = 2_000  # entries of one registry that are looked at


class Place(NamedTuple):
    """A name in a module of Python's; ``path`` is with the class that it is in. ``deep``: the place is the user's, and
    what stands there is walked into."""

    module: str
    path: str
    deep: bool = False


class Row(NamedTuple):
    """What stands in one place, as a table with a key. ``users``: the place is the user's, or what stands there;
    ``deep``: and it is walked into."""

    module: str
    table: Any
    key: Any
    value: Any
    name: str
    users: bool = False
    deep: bool = False


class Call(NamedTuple):
    """A function that ran: its code, the globals that it ran in, and the modules that it imported by a string."""

    code: types.CodeType
    globals: dict[str, Any]
    imports: frozenset[str] = frozenset()


def places(ran: Iterable[Call], names: frozenset[str]) -> frozenset[Place]:
    """The places that count for the functions that ``ran``; ``names`` are all that stand in their code."""
    found: set[Place] = set()
    ran = list(ran)
    codes = {one.code for one in ran}
    classes: dict[type, tuple[str, str]] = {}
    counted: set[tuple[str, str]] = set()  # a library's own counters
    for one in ran:
        module = _module_of(one.globals)
        if module is None or tells(module.__name__) or module.__name__.startswith("detente.bridge"):
            continue
        # What ``eval`` runs has no file; the body of a module that is imported, or of a class, has.
        if not one.code.co_flags & _OF_A_FUNCTION and one.code.co_filename[:1] != "<":
            continue
        found.update(_asked(one, module, names, codes))
        if of_library(module.__name__):
            counted.update((module.__name__, name) for name in stored_globals(one.code))
            found.update(_where_it_stands(one.code, module, classes))
    for kind, (name, path) in classes.items():
        for key, value in vars(kind).items():
            named = key in names and not key.startswith("__") and not isinstance(value, _FUNCTIONS)
            if named or _runs(value, codes) or users(value):
                found.add(Place(name, f"{path}.{key}"))
    for owner in _EVERYWHERE:
        table = vars(owner)
        name, inside = (
            (owner.__module__, f"{owner.__name__}.") if isinstance(owner, type) else (owner.__name__, "")
        )
        wanted = [key for key in names if key in table and not key.startswith("__")]
        found.update(
            Place(name, inside + key)
            for key in wanted
            if isinstance(table[key], _FUNCTIONS) or users(table[key])
        )
    return frozenset(place for place in found if (place.module, place.path) not in counted)


def _module_of(held: dict[str, Any]) -> types.ModuleType | None:
    """The module with these globals; None for what was run in a dictionary."""
    module = sys.modules.get(held.get("__name__", ""))
    return module if isinstance(module, types.ModuleType) and vars(module) is held else None


def _runs(value: Any, codes: Container[types.CodeType]) -> bool:
    """Whether a function is one of those that ran, or holds it."""
    inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    inner = inner.fget if isinstance(inner, property) else inner
    return isinstance(inner, types.FunctionType) and inner.__code__ in codes


def _where_it_stands(
    code: types.CodeType, module: types.ModuleType, classes: dict[type, tuple[str, str]]
) -> Iterator[Place]:
    """Where a function of a library's stands by its own name; the class that it is in becomes one of ``classes``."""
    *owners, name = code.co_qualname.split(".")
    if "<" in code.co_qualname:
        return
    held: Any = module
    for owner in owners:
        held = vars(held).get(owner) if isinstance(held, type | types.ModuleType) else None
    if isinstance(held, type):
        classes[held] = module.__name__, ".".join(owners)
    elif held is module and name in vars(module):
        yield Place(module.__name__, name)


def _asked(
    one: Call, module: types.ModuleType, names: frozenset[str], codes: Container[types.CodeType]
) -> Iterator[Place]:
    """The globals that code names, what it names of modules, and what it asks for by a string."""
    code, held, mine = one.code, vars(module), not of_library(module.__name__)
    strings = frozenset(strings_in(code))
    asked = frozenset(names_in(code)) | strings
    modules = [*_imported(code, held)]
    for name in (name for name in code.co_names if name in held and not name.startswith("__")):
        if isinstance(held[name], types.ModuleType):
            modules.append(held[name])
            yield Place(module.__name__, name)
        elif name in globals_in(code):
            yield Place(module.__name__, name, mine)
    yield from _of_modules(modules, asked, code, codes)
    if mine and asks_globals(code):
        yield from (Place(module.__name__, name, True) for name in strings if name in held)
        if makes_keys(code):
            yield from _whatever(module, codes)
    if mine and asks_modules(code):
        said = {value for name in code.co_names if isinstance(value := held.get(name), str)}
        by_string: list[Any] = [sys.modules[n] for n in (strings | said | one.imports) if n in sys.modules]
        every: list[Any] = [*sys.modules.values()] if makes_keys(code) else by_string
        yield from _of_modules(filter(_is_module, by_string), asked, code, codes)
        for other in filter(_is_module, every):
            if not of_library(other.__name__):
                yield from (place for place in _whatever(other, codes) if place.path in names)


def _is_module(value: Any) -> bool:
    """Anybody may put anything into ``sys.modules``."""
    return isinstance(value, types.ModuleType)


def _imported(code: types.CodeType, held: dict[str, Any]) -> Iterator[types.ModuleType]:
    """The modules that a function imports when it runs."""
    if _IMPORTS not in code.co_code[::2]:
        return
    package = held.get("__package__") or ""
    outer = [package.rsplit(".", depth)[0] for depth in range(package.count(".") + 1)] if package else []
    for name in code.co_names:
        for full in (name, *(f"{part}.{name}" for part in outer)):
            if isinstance(module := sys.modules.get(full), types.ModuleType):
                yield module


def _of_modules(
    modules: Iterable[types.ModuleType],
    asked: frozenset[str],
    code: types.CodeType,
    codes: Container[types.CodeType],
) -> Iterator[Place]:
    """What code that names ``asked`` may take of these modules, and of those in them."""
    left, seen = list(modules), set[int]()
    while left:
        module = left.pop()
        name = module.__name__
        if id(module) in seen or sys.modules.get(name) is not module or tells(name):
            continue
        seen.add(id(module))
        held, mine = vars(module), not of_library(name)
        for key in asked:
            if key not in held or key.startswith("__"):
                continue
            if isinstance(held[key], types.ModuleType):
                left.append(held[key])
            else:
                yield Place(name, key, mine)
        if mine and makes_names(code):
            yield from _whatever(module, codes)


def _whatever(module: types.ModuleType, codes: Container[types.CodeType]) -> Iterator[Place]:
    """All of a user's module that code may take by a name that does not stand in it: plain values, tables, and the
    functions that ran."""
    for key, value in list(vars(module).items()):
        if key.startswith("__"):
            continue
        if isinstance(value, (*PLAIN, dict, list)):
            yield Place(module.__name__, key)
        elif _runs(value, codes):
            yield Place(module.__name__, key, True)


class Standing:
    """What stands in ``places`` now. ``rows`` are the places with what they hold, ``tables`` the registries and classes
    of libraries, with their names, to which something of the user's may come. ``names`` are all that the code has."""

    def __init__(self, places: Iterable[Place], names: Container[str]) -> None:
        self.rows: list[Row] = []
        self.tables: list[tuple[Any, str]] = []
        self._names = names
        self._seen: set[int] = set()
        owners: dict[tuple[str, str], Any] = {}
        for module, path, deep in sorted(places):
            inside, _, key = path.rpartition(".")
            if (module, inside) not in owners:
                owners[module, inside] = _table(module, inside)
                if inside and owners[module, inside] is not None:
                    self.tables.append((owners[module, inside], f"{module}.{inside}"))
            table = owners[module, inside]
            if table is None or key not in table:
                continue
            row = Row(
                module, table, key, table[key], f"{module}.{path}", deep or not of_library(module), deep
            )
            if deep:
                self.rows.append(row)
            elif not of_python(module) or _is_called(row.value):
                self._one(row)

    def _one(self, row: Row) -> None:
        """A place, and what the thing in it holds where that is a registry."""
        value = row.value
        if users(value):
            self.rows.append(row._replace(users=True, deep=True))
        elif not isinstance(value, _CLOSED):
            self.rows.append(row)
            if not isinstance(value, _ALONE) and id(value) not in self._seen:
                self._seen.add(id(value))
                self._inside(row)

    def _inside(self, row: Row) -> None:
        value = row.value
        if _is_table(value):
            self._entries(row)
        elif not of_python(type(value).__module__):
            own = getattr(value, "__dict__", None)
            kinds = [OfClass(kind) for kind in type(value).__mro__ if not of_python(kind.__module__)]
            for table in (*([own] if isinstance(own, dict) else []), *kinds):
                for key in [key for key in table if key in self._names and not key.startswith("__")]:
                    self._entry(
                        row._replace(table=table, key=key, value=table[key], name=f"{row.name}.{key}")
                    )

    def _entry(self, row: Row) -> None:
        """A value of an object, or of a registry."""
        value = row.value
        if users(value):
            self.rows.append(row._replace(users=True, deep=True))
        elif isinstance(value, _ALONE):
            self.rows.append(row)
        elif _is_table(value) and id(value) not in self._seen:
            self._seen.add(id(value))
            self._entries(row)

    def _entries(self, row: Row) -> None:
        """Each function, class and plain value of a registry."""
        table = row.value
        if len(table) > _MOST:
            return
        if isinstance(table, dict):
            self.tables.append((table, row.name))
        for key, value in dict.items(table) if isinstance(table, dict) else enumerate(table):
            if isinstance(value, _ALONE) or users(value):
                self._entry(row._replace(table=table, key=key, value=value, name=f"{row.name}[{key!r}]"))


def _is_called(value: Any) -> bool:
    """Whether it is a function, as far as is known of it without asking: of Python's own modules nothing else counts,
    ``sys.stdout`` least."""
    return callable(value) and (isinstance(value, _FUNCTIONS) or users(value))


def _is_table(value: Any) -> bool:
    """Whether it is a list or a dictionary that gives what it holds, and runs nobody's code for that."""
    return type(value) is list or (isinstance(value, dict) and type(value).__getitem__ is dict.__getitem__)


def _table(module: str, path: str) -> Any:
    """The table of a module, or of a class in it; None where there is none now."""
    held: Any = sys.modules.get(module)
    for name in path.split(".") if path else ():
        held = vars(held).get(name) if isinstance(held, type | types.ModuleType) else None
    return OfClass(held) if isinstance(held, type) else getattr(held, "__dict__", None)
