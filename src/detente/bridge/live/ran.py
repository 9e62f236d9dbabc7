"""The code that ran while a program was captured, and what it asks for by name."""

from __future__ import annotations

import _lsprof
import dataclasses
import importlib
import importlib.util
import inspect
import os
import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from detente.bridge.live.instructions import loaded, makes_names, matched, matches_by_place
from detente.bridge.live.outside import Outside
from detente.bridge.live.python import MADE_BY_FX, in_library, of_library
from detente.bridge.live.standing import Call, Place, places


@dataclass(frozen=True)
class Names:
    """The names in the code that ran while a program was captured. ``any`` where a user's function among it makes up
    names of attributes itself; ``fields`` where something takes an object apart by what its class says are its fields
    (``dataclasses.asdict``, a ``match``); ``places`` those in modules that what ran is found by, or asks for;
    ``values`` those of tensors that Python read; ``theirs`` what code of Python's own and numpy's asked for, which is
    asked of objects of their classes alone (``coef`` of a polynomial)."""

    names: frozenset[str] = frozenset()
    any: bool = False
    fields: bool = False
    places: frozenset[Place] = frozenset()
    values: frozenset[str] = frozenset()
    theirs: frozenset[str] = frozenset()

    def __or__(self, other: Names) -> Names:
        return Names(
            self.names | other.names,
            self.any or other.any,
            self.fields or other.fields,
            self.places | other.places,
            self.values | other.values,
            self.theirs | other.theirs,
        )

    def __contains__(self, name: object) -> bool:
        return self.any or name in self.names


class Ran:
    """Notes every function that runs, but where ``noting`` says not to: looking costs more than torch's own capture
    (5.7 s instead of 2.4 for GPT-2 Small), and nearly all of what runs there is torch's."""

    def __init__(self) -> None:
        self._codes: dict[types.CodeType, dict[str, Any]] = {}  # with the globals that it ran in
        self._imports: dict[types.CodeType, set[str]] = {}  # modules that code asked for by a string
        self._taken: set[types.CodeType] = set()  # what takes objects apart, where the user's code called it
        # code without a file, with the module that it runs in
        self._typed: dict[types.CodeType, str | None] = {}
        self._begun = self._on = False
        self._before: Any = None
        self.outside = Outside()

    def __enter__(self) -> Ran:
        self._before, self._begun = sys.getprofile(), True
        self._note(True)
        return self

    def __exit__(self, *error: object) -> None:
        self._note(False)
        self._begun = False

    @contextmanager
    def noting(self, on: bool) -> Iterator[None]:
        """Whether what runs in the block is noted; outside of its own ``with`` nothing is."""
        before = self._on
        self._note(on)
        try:
            yield
        finally:
            self._note(before)

    def _note(self, on: bool) -> None:
        if on != self._on and self._begun:
            self._on = on
            if on:
                sys.setprofile(self._seen)
            else:
                _put_back(self._before)

    def _seen(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            self._codes[code] = frame.f_globals
            if code.co_name in _MAY_TAKE_APART and not in_library(_caller(frame)):
                self._taken.add(code)
            elif code is _IMPORTING and frame.f_back is not None:
                self._imports.setdefault(frame.f_back.f_code, set()).add(_full_name(frame.f_locals))
            if code.co_filename[:1] == "<":
                self._typed[code] = frame.f_globals.get("__name__")
        elif event == "c_call":
            self.outside.called(frame, argument)

    def changing(self) -> list[str]:
        """What a user's function among it asks for by a name of the clock's or of chance's."""
        ran = self._codes.copy()  # it may still be growing
        users = (c for c in ran if not in_library(c.co_filename) and _may_ask(c))
        return sorted(_CHANGING & {name for code in users for name in code.co_names})

    def of_the_system(self, held: bool) -> bool:
        """Whether a user's function drew from what the system calls random, which is ``held`` by something in reach, or
        asked for by its name. (numpy draws from it, too, wherever it makes a generator: in an import.)"""
        ran = self._codes.copy()
        if _OF_THE_SYSTEM.isdisjoint(ran):
            return False
        users = (code for code in ran if not in_library(code.co_filename) and _may_ask(code))
        return held or any(not _BY_NAME.isdisjoint(code.co_names) for code in users)

    def users(self) -> frozenset[types.CodeType]:
        """The code of functions that are neither a library's nor ours, nor written by the capture itself."""
        return frozenset(
            code
            for code in self._codes.copy()
            if not in_library(code.co_filename)
            and not code.co_filename.startswith(MADE_BY_FX)
            and not (code in self._typed and _written_by_others(self._typed[code]))
            and code.co_name != "<module>"  # an import
            and _may_ask(code)
        )

    def names(self) -> Names:
        """Everything that the code calls by a name, and every string in it (``getattr(self, "beta")``)."""
        ran = self._codes.copy()
        asking = list(filter(_may_ask, ran))
        imports = self._imports.copy()
        found = frozenset(
            name
            for code in asking
            for name in (*loaded(code), *matched(code), *(c for c in code.co_consts if isinstance(c, str)))
        )
        users = [c for c in asking if not in_library(c.co_filename)]
        # By the user's own: transformers asks each of its results for its fields.
        taken = self._taken.copy()
        fields = any(map(_takes_apart, taken)) or any(map(matches_by_place, users))
        called = [Call(code, ran[code], frozenset(imports.get(code, ()))) for code in asking]
        return Names(
            found,
            any(map(makes_names, users)) or any(map(_makes_members, taken)),
            fields,
            places(called, found),
            theirs=frozenset(name for code in ran if _is_theirs(code) for name in loaded(code)),
        )


def _caller(frame: Any) -> str | None:
    """The file of whoever called, past doors of the same house (``attrs.asdict`` calls ``attr``'s); None where nobody
    did."""
    caller = frame.f_back
    while caller is not None and Path(caller.f_code.co_filename).parts[-2:][0] in _DOORS:
        caller = caller.f_back
    return caller.f_code.co_filename if caller is not None else None


def _put_back(profiler: Any) -> None:
    """What profiled before goes on. cProfile's, up to Python 3.12, is installed from C, and is no function; what else
    is none (a sampler's) was lost when ours took its place, and is left off."""
    if isinstance(profiler, _lsprof.Profiler):
        sys.setprofile(None)
        profiler.enable()
    else:
        sys.setprofile(profiler if callable(profiler) else None)


# Python's own that reads every attribute of what it is given, and the ends of files of libraries with their functions
# that read every field.
_MEMBERS = frozenset(function.__code__ for function in (inspect.getmembers, inspect.getmembers_static))
_FIELDS = frozenset(
    function.__code__
    for function in (dataclasses.asdict, dataclasses.astuple, dataclasses.replace, dataclasses.fields)
)
_FIELDS_OF = {
    os.path.join("attr", "_funcs.py"): frozenset({"asdict", "astuple", "evolve"}),
    os.path.join("attr", "_make.py"): frozenset({"fields", "fields_dict"}),
    os.path.join("pydantic", "main.py"): frozenset(
        {"model_dump", "model_dump_json", "model_copy", "__iter__", "__eq__", "__copy__", "__deepcopy__", "dict"}
    ),
}  # fmt: skip


_DOORS = ("attr", "attrs", "pydantic")
_IMPORTING = importlib.import_module.__code__
_MAY_TAKE_APART = frozenset(
    {
        *(code.co_name for code in (*_MEMBERS, *_FIELDS)),
        *(name for names in _FIELDS_OF.values() for name in names),
    }
)


def _full_name(asked: dict[str, Any]) -> str:
    """Of the module that ``importlib.import_module`` was asked for."""
    name, package = asked.get("name"), asked.get("package")
    if not isinstance(name, str):
        return ""
    try:
        return importlib.util.resolve_name(name, package) if package else name
    except ImportError:  # which it is about to say itself
        return ""


def _makes_members(code: types.CodeType) -> bool:
    return code in _MEMBERS


@cache
def _takes_apart(code: types.CodeType) -> bool:
    """Whether it reads the fields of an object by what its class says they are."""
    return code in _FIELDS or any(
        code.co_name in names for end, names in _FIELDS_OF.items() if code.co_filename.endswith(end)
    )


def _written_by_others(module: str | None) -> bool:
    """Whether code without a file runs in a library's module or in ours (a dataclass writes such), is a named tuple's,
    or belongs to no module (what torch.export writes to check its inputs)."""
    return module is None or module.startswith(("namedtuple_", "detente.bridge.")) or of_library(module)


# Names of what gives another number whenever it is asked, and has no state that could be looked at.
_CHANGING = frozenset(
    {
        "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "now",
        "today", "utcnow", "default_rng", "RandomState", "Random", "SystemRandom", "urandom", "randbelow", "randbits",
        "token_bytes", "token_hex", "uuid1", "uuid4", "getrandbits",
    }
)  # fmt: skip
_BY_NAME = frozenset({"secrets", "SystemRandom", "randbelow", "choice", "randbits"})
_OF_THE_SYSTEM = frozenset(
    vars(random.SystemRandom)[name].__code__ for name in ("random", "getrandbits", "randbytes")
)
# Code that asks for nothing of a user's objects: Python's own, numpy's, JAX's and ours, and of torch's all but its
# modules, schedulers and data sets. What stands in the place of a module's method asks in its stead.
_PYTHON = (str(Path(types.__file__ or "types").parent), "<frozen")
_NUMPY = str(Path(np.__file__ or "").parent) + os.sep
_INSTALLED = ("site-packages", "dist-packages")
_OTHERS = tuple(
    str(Path(file or "").parent) + os.sep
    for file in (torch.__file__, np.__file__, jax.__file__, str(Path(__file__).parents[1]))
)
_MODULES = (
    *(
        str(Path(p.__file__ or "").parent) + os.sep
        for p in (torch.nn, torch.ao, torch.distributions, torch.utils.data)
    ),
    str(torch.optim.lr_scheduler.__file__),
    str(Path(__file__).parents[1] / "capture" / "statistics.py"),
)


def _may_ask(code: types.CodeType) -> bool:
    file = code.co_filename
    if file.startswith(_MODULES):
        return True
    if file.startswith(_OTHERS):
        return False
    return any(part in file for part in _INSTALLED) or not file.startswith(_PYTHON)


def _is_theirs(code: types.CodeType) -> bool:
    """Whether it is Python's own or numpy's."""
    file = code.co_filename
    return file.startswith(_NUMPY) or (
        file.startswith(_PYTHON) and not any(part in file for part in _INSTALLED)
    )
