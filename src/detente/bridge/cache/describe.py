"""A stable text for whatever a program depends on: modules, functions with their closures and globals,
tensors.

Two processes that would capture the same program describe it alike; a changed line, closure value, flag or
global constant gives another text. What cannot be described for certain raises ``Unknown``, and is then not
cached: a stale program would be worse than a slow start.
"""

from __future__ import annotations

import array
import copy
import enum
import functools
import hashlib
import logging
import pathlib
import random
import sys
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from detente.bridge.dense import dense
from detente.bridge.live.instructions import globals_in, strings_in
from detente.bridge.live.places import Slots
from detente.bridge.live.python import PLAIN, imported, in_library, names_in, of_library, users_function
from detente.bridge.private import OpOverload, OpOverloadPacket, plainly

_MEMO = frozenset(
    {"_original_object_hash"}
)  # transformers: Python's hash of a config, another one in every process
# parts of every module that hold other modules, tensors or bookkeeping; all of them are described elsewhere
_SKIPPED = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"})
# What a class holds that no code asks for, or that is described beside it.
_OF_EVERY_CLASS = frozenset({"_abc_impl", "__dict__", "__weakref__"})
# A class member that only says where an object keeps a value.
_WHERE = (types.MemberDescriptorType, types.GetSetDescriptorType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
# Their ``repr`` says all that they hold.
_SAID = (
    *(torch.layout, torch.memory_format, types.GenericAlias, types.UnionType, pathlib.PurePath),
    *(types.EllipsisType, types.NotImplementedType),
)
_IN_C = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
# Generators that every process has: what is drawn from them decides nothing (capture/generators.py), or is refused.
_OF_THE_PROCESS = {
    id(random.random.__self__): "Python's generator",  # type: ignore[attr-defined]
    id(np.random.rand.__self__): "numpy's generator",  # type: ignore[attr-defined]
}
# Objects with numbers inside of them that no table of Python's shows.
_HIDDEN = (random.Random,)
# Code that names one of these may ask a module for any name.
_MAKES_NAMES = frozenset({"getattr", "vars", "__dict__", "attrgetter"})


class Unknown(Exception):
    """Something has no stable description; the text says what."""


def digest(*parts: str) -> str:
    """A file name for a description."""
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=20).hexdigest()


def content(tensor: torch.Tensor) -> str:
    """A hash of a tensor's values."""
    from detente.bridge.arrays import to_numpy

    return _hash(to_numpy(tensor).tobytes())


class Writer:
    """Describes values; whatever was met before is named by its number, so cycles end, and two names of one object
    are not two objects. ``codes`` are those of all functions that were described, in that order, and ``places`` the
    globals and names of modules, each with the id of its table."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.seen: dict[int, int] = {}
        self.kept: list[Any] = []  # an id is only unique while its object lives
        self.codes: list[types.CodeType] = []
        self.places: set[tuple[int, str]] = set()
        self.asked: set[tuple[int, str]] = set()  # of modules of Python's, what is described under which name
        parts = () if model is None else model.named_modules()
        self.parts = {id(part): path for path, part in parts}

    def again(self) -> Writer:
        """One that goes on from here, while this one stays as it is."""
        other = copy.copy(self)
        for name in ("seen", "kept", "codes", "places", "asked"):
            setattr(other, name, copy.copy(getattr(self, name)))
        return other

    def module(self, module: nn.Module) -> str:
        """Classes with their code, plain attributes, hooks, and name, shape, dtype, trainability of every
        tensor, and which of them are one."""
        lines = []
        for path, part in module.named_modules(remove_duplicate=False):
            lines.append(f"{path}:{self.kind(type(part))}:{part.training}")
            for name, value in sorted(vars(part).items()):
                if name not in _SKIPPED:
                    lines.append(f"  {name}={self.value(value)}")
        memory: dict[Any, int] = {}
        for name, tensor in (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ):
            held = (str(tensor.device), _address(tensor))
            lines.append(
                f"{name}:{list(tensor.shape)}:{tensor.dtype}:{tensor.requires_grad}:{_strides(tensor)}"
                f":memory {memory.setdefault(held, len(memory))}{self.beside(tensor)}"
            )
        return "\n".join(lines)

    def value(self, value: Any) -> str:
        """Any value: a loss function with its closure, an option, a group of numbers."""
        if isinstance(value, PLAIN):
            text = f"{type(value).__name__} {value!r}"
            return text if type(value) in PLAIN else text + self.beside(value)
        if isinstance(value, _SAID):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, nn.Parameter):  # an input of the program, whatever it holds
            return f"parameter {list(value.shape)} {value.dtype}{self.beside(value)}"
        if isinstance(value, weakref.ref):
            return f"reference to {self.value(value())}"
        if isinstance(value, torch.Tensor):
            if not dense(value):
                raise Unknown(f"a {'nested' if value.is_nested else value.layout} tensor")
            return f"tensor {list(value.shape)} {value.dtype} {content(value)}{self.beside(value)}"
        if id(value) in self.seen:
            return f"#{self.seen[id(value)]}"
        if isinstance(value, type):
            return self.kind(value)
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        if isinstance(value, np.ndarray | np.generic):
            return self.array(value)
        if isinstance(value, _CONTAINERS):
            return self.container(value)
        return self.object(value)

    def container(self, value: Any) -> str:
        if isinstance(value, dict):
            text = "{" + ",".join(f"{self.value(k)}:{self.value(v)}" for k, v in value.items()) + "}"
        elif isinstance(value, set | frozenset):
            text = "set[" + ",".join(sorted(self.value(v) for v in value)) + "]"
        else:
            text = f"{type(value).__name__}[" + ",".join(self.value(v) for v in value) + "]"
        if isinstance(value, defaultdict):
            text += f" default {self.value(value.default_factory)}"
        if isinstance(value, deque):
            text += f" at most {value.maxlen}"
        return text if type(value) in _CONTAINERS else text + self.beside(value)

    def array(self, value: np.ndarray | np.generic) -> str:
        own = "" if type(value) is np.ndarray else self.beside(value)
        if value.dtype.hasobject:  # its bytes are where its objects lie
            return f"array {value.dtype} {value.shape} {self.value(value.tolist())}{own}"
        hashed = _hash(np.ascontiguousarray(value).tobytes())
        return f"array {value.dtype} {value.shape} {hashed}{own}"

    def beside(self, value: Any) -> str:
        """What an object of a class of the user's, or one with attributes, is beside the value that it holds."""
        own = {k: v for k, v in (getattr(value, "__dict__", None) or {}).items() if "_detente" not in k}
        kind = type(value)
        plain = kind in (torch.Tensor, nn.Parameter) or kind.__module__.startswith("detente.")
        return ("" if plain else f" of {self.kind(kind)}") + (f" with {self.value(own)}" if own else "")

    def object(self, value: Any) -> str:
        if isinstance(value, functools.partial | functools.partialmethod):
            return f"partial({self.value(value.func)},{self.value(value.args)},{self.value(value.keywords)})"
        if isinstance(value, types.MethodType):
            return f"method({self.value(value.__func__)} of {self.value(value.__self__)})"
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, types.ModuleType):
            return self.python_module(value, None)
        if isinstance(value, _IN_C):
            owner = getattr(value, "__self__", None)
            of = "" if owner is None or isinstance(owner, types.ModuleType) else f" of {self.value(owner)}"
            return f"builtin {getattr(value, '__module__', '')}.{value.__qualname__}{of}"
        if isinstance(value, OpOverload | OpOverloadPacket):
            return f"operator {value}"
        if isinstance(value, nn.Module):
            if id(value) in self.parts:
                return f"part {self.parts[id(value)]!r}"  # described by its path
            return f"module {self.module(value)}"
        if id(value) in _OF_THE_PROCESS:
            return _OF_THE_PROCESS[id(value)]
        if isinstance(value, logging.Filterer):
            return "a logger"  # what is logged decides no number
        if isinstance(value, ContextVar):
            return f"context {value.name} says {self.value(value.get(None))}"
        if isinstance(value, types.MappingProxyType):
            return f"view of {self.value(dict(value))}"
        if isinstance(value, array.array):
            return f"array {value.typecode} {_hash(value.tobytes())}"
        if isinstance(value, property | functools.cached_property | staticmethod | classmethod):
            return self.member(value)
        slots = Slots(value)
        state = getattr(value, "__dict__", None)
        if (state is None and not slots.names) or isinstance(value, _HIDDEN):
            raise Unknown(f"a {type(value).__module__}.{type(value).__qualname__}")
        own = {k: v for k, v in sorted((state or {}).items()) if k not in _MEMO}
        if isinstance(value, enum.Enum):
            own.pop("__objclass__", None)
        return f"{self.kind(type(value))}{self.value(own)}{self.value(dict(slots.items()))}"

    def kind(self, kind: type) -> str:
        """A class: its name, and all that it holds where it is the user's; of a library's what the user has put
        into it."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        if id(kind) in self.seen:
            return f"class {name} #{self.seen[id(kind)]}"
        self.seen[id(kind)] = len(self.seen)
        self.kept.append(kind)
        held = vars(kind)
        if of_library(kind.__module__):
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            patched = {n: v for n, v in sorted(held.items()) if users_function(v)}
            parents = (
                self.kind(b) for b in kind.__bases__ if issubclass(kind, nn.Module) and b is not object
            )
            return f"class {name} {_stamp(file)}{self.value(patched)}({','.join(parents)})"
        members = (
            f"{n}={self.member(v)}"
            for n, v in sorted(held.items())
            if n not in _OF_EVERY_CLASS and (not n.startswith("__") or callable(v))
        )
        parents = ",".join(self.kind(b) for b in (*kind.__bases__, type(kind)) if b not in (object, type))
        return f"class {name}({parents})[{';'.join(members)}]"

    def member(self, value: Any) -> str:
        if isinstance(value, staticmethod | classmethod):
            return f"{type(value).__name__} {self.value(value.__func__)}"
        if isinstance(value, property):
            return f"property {self.value((value.fget, value.fset, value.fdel))}"
        if isinstance(value, functools.cached_property):
            return f"property {self.value(value.func)}"
        if isinstance(value, _WHERE) or type(value).__module__ == "_collections":  # a field of a named tuple
            return str(type(value).__qualname__)
        return self.value(value)

    def function(self, function: types.FunctionType) -> str:
        code = function.__code__
        self.codes += _codes(code)
        name = f"{function.__module__}.{function.__qualname__}"
        if in_library(code.co_filename):
            # what a decorator of a library's copied from the user's function, or was given by the user
            own = {k: v for k, v in sorted(vars(function).items()) if not k.startswith("_")}
            return f"function {name} {_stamp(code.co_filename)}{self.value(own)}" + self.closure(function)
        names, of_module = frozenset(names_in(code)), globals_in(code)
        used = []
        for n in sorted(names & function.__globals__.keys()):
            held = function.__globals__[n]
            if n not in of_module and not isinstance(held, types.ModuleType):
                continue  # an attribute that is called so
            self.places.add((id(function.__globals__), n))
            if isinstance(held, types.ModuleType):
                used.append(f"{n}={self.python_module(held, _asked_of_modules(code, names))}")
            else:
                used.append(f"{n}={self.value(held)}")
        for module in imported(names, function.__globals__):
            used.append(self.python_module(module, _asked_of_modules(code, names)))
        given = self.value([function.__defaults__, function.__kwdefaults__, vars(function)])
        return f"function {name} {_code(code)} uses[{','.join(used)}] given{given}" + self.closure(function)

    def python_module(self, module: types.ModuleType, names: frozenset[str] | None) -> str:
        """A module of Python's: of the user's what it holds under ``names``, or (None) all of it; of a library's what
        the user has put into it under those names."""
        file = getattr(module, "__file__", None)
        held = vars(module)
        if of_library(module.__name__):
            patched = {n: held[n] for n in sorted(names or ()) if users_function(held.get(n))}
            return f"module {module.__name__} {_stamp(file)}{self.value(patched)}"
        asked = [n for n in sorted(held) if not n.startswith("__") and (names is None or n in names)]
        fresh = [n for n in asked if (id(module), n) not in self.asked]
        self.asked.update((id(module), n) for n in fresh)
        self.places.update((id(held), n) for n in fresh)
        self.kept.append(module)
        lines = []
        for n in fresh:
            inner = held[n]
            said = (
                self.python_module(inner, names) if isinstance(inner, types.ModuleType) else self.value(inner)
            )
            lines.append(f"{n}={said}")
        return f"module {module.__name__} {_stamp(file)} asked {asked} holds[{','.join(lines)}]"

    def closure(self, function: types.FunctionType) -> str:
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.value(cell.cell_contents))
            except ValueError:  # a cell that is still empty
                cells.append("empty")
        return f" closure[{','.join(cells)}]" if cells else ""


def _asked_of_modules(code: types.CodeType, names: frozenset[str]) -> frozenset[str] | None:
    """The names under which code may ask a module for something; None where that is any."""
    return None if names & _MAKES_NAMES else names | frozenset(strings_in(code))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions that it makes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _code(code: types.CodeType) -> str:
    """A hash of what a function does; line numbers and file names do not count."""
    found = hashlib.blake2b(code.co_code + code.co_exceptiontable, digest_size=16)
    for constant in code.co_consts:
        text = _code(constant) if isinstance(constant, types.CodeType) else repr(constant)
        found.update(text.encode())
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    found.update(repr((*names, code.co_flags, code.co_argcount, code.co_kwonlyargcount)).encode())
    return found.hexdigest()


def _address(tensor: torch.Tensor) -> Any:
    """What is equal for two tensors of one memory."""
    try:
        return plainly(torch.Tensor.untyped_storage, tensor).data_ptr() or f"tensor {id(tensor)}"
    except (RuntimeError, NotImplementedError):  # it has none
        return f"tensor {id(tensor)}"


def _strides(tensor: torch.Tensor) -> str:
    return f"{tensor.stride()} from {tensor.storage_offset()}" if tensor.layout == torch.strided else ""


def _hash(found: bytes) -> str:
    return hashlib.blake2b(found, digest_size=16).hexdigest()


def _stamp(file: str | None) -> str:
    """Size and time of a library's file and of what was compiled, the hash of a user's source."""
    if file is None:
        return ""
    try:
        if in_library(file) or not file.endswith(".py"):
            status = Path(file).stat()
            return f"{status.st_size}.{status.st_mtime_ns}"
        return _hash(Path(file).read_bytes())
    except OSError:
        return ""
