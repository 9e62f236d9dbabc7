"""A stable text for whatever a program depends on: modules, functions with their closures and globals,
tensors.

Two processes that would capture the same program describe it alike; a changed line, closure value, flag or
global constant gives another text. What cannot be described for certain raises ``Unknown``, and is then not
cached: a stale program would be worse than a slow start.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from detente.bridge.live.python import PLAIN, in_library, names_in
from detente.bridge.private import OpOverload, OpOverloadPacket

# parts of every module that hold other modules, tensors or bookkeeping; all of them are described elsewhere
_MEMO = frozenset(
    {"_original_object_hash"}
)  # transformers: Python's hash of a config, another one in every process
_SKIPPED = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"})


class Unknown(Exception):
    """Something has no stable description; the text says what."""


def digest(*parts: str) -> str:
    """A file name for a description."""
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=20).hexdigest()


def describe_module(module: nn.Module) -> str:
    """Classes with their code, plain attributes, hooks, and name, shape, dtype, trainability of every
    tensor."""
    writer = _Writer()
    lines = []
    for path, part in module.named_modules(remove_duplicate=False):
        lines.append(f"{path}:{writer.kind(type(part))}:{part.training}")
        for name, value in sorted(vars(part).items()):
            if name not in _SKIPPED:
                lines.append(f"  {name}={writer.value(value)}")
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        lines.append(
            f"{name}:{list(tensor.shape)}:{tensor.dtype}:{tensor.requires_grad}:{tensor.is_contiguous()}"
        )
    return "\n".join(lines)


def describe(value: Any) -> str:
    """Any value: a loss function with its closure, an option, a group of numbers."""
    return _Writer().value(value)


def content(tensor: torch.Tensor) -> str:
    """A hash of a tensor's values."""
    from detente.bridge.arrays import to_numpy

    array = to_numpy(tensor)
    return hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()


class _Writer:
    """Describes values; whatever was met before is named by its number, so cycles end."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.kept: list[Any] = []  # an id is only unique while its object lives

    def value(self, value: Any) -> str:
        if isinstance(value, PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, nn.Parameter):  # an input of the program, whatever it holds
            return f"parameter {list(value.shape)} {value.dtype}"
        if isinstance(value, weakref.ref):
            return "reference"
        if isinstance(value, torch.Tensor):
            return f"tensor {list(value.shape)} {value.dtype} {content(value)}"
        if isinstance(value, np.ndarray | np.generic):
            hashed = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).hexdigest()
            return f"array {value.dtype} {value.shape} {hashed}"
        if id(value) in self.seen:
            return f"#{self.seen[id(value)]}"
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        if isinstance(value, dict):
            return "{" + ",".join(f"{self.value(k)}:{self.value(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}[" + ",".join(self.value(v) for v in value) + "]"
        if isinstance(value, set | frozenset):
            return "set[" + ",".join(sorted(self.value(v) for v in value)) + "]"
        if isinstance(value, type):
            return self.kind(value)
        return self.object(value)

    def object(self, value: Any) -> str:
        if isinstance(value, functools.partial):
            return f"partial({self.value(value.func)},{self.value(value.args)},{self.value(value.keywords)})"
        if isinstance(value, types.MethodType):
            return f"method({self.value(value.__func__)} of {self.value(value.__self__)})"
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__} {_stamp(getattr(value, '__file__', None))}"
        if isinstance(
            value, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType
        ):
            return f"builtin {getattr(value, '__module__', '')}.{value.__qualname__}"
        if isinstance(value, OpOverload | OpOverloadPacket):
            return f"operator {value}"
        if isinstance(value, nn.Module):
            return f"module of {self.kind(type(value))}"  # its attributes: describe_module, by path
        state = getattr(value, "__dict__", None)
        if state is None:
            raise Unknown(f"a {type(value).__module__}.{type(value).__qualname__}")
        own = {k: v for k, v in sorted(state.items()) if k not in _MEMO}
        return f"{self.kind(type(value))}{self.value(own)}"

    def kind(self, kind: type) -> str:
        """A class: its name, and the code of its own methods where they are the user's."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if id(kind) in self.seen or in_library(file):
            return f"class {name} {_stamp(file)}"
        self.seen[id(kind)] = len(self.seen)
        self.kept.append(kind)
        methods = (
            f"{n}={self.member(v)}"
            for n, v in sorted(vars(kind).items())
            if not n.startswith("__") or callable(v)
        )
        parents = ",".join(self.kind(b) for b in kind.__bases__ if b is not object)
        return f"class {name}({parents})[{';'.join(methods)}]"

    def member(self, value: Any) -> str:
        if isinstance(value, staticmethod | classmethod):
            return self.value(value.__func__)
        if isinstance(value, property):
            return self.value([f for f in (value.fget, value.fset) if f is not None])
        if isinstance(value, (types.FunctionType, *PLAIN)):
            return self.value(value)
        return type(value).__qualname__

    def function(self, function: Callable[..., Any]) -> str:
        code = function.__code__
        name = f"{function.__module__}.{function.__qualname__}"
        if in_library(code.co_filename):
            return f"function {name} {_stamp(code.co_filename)}" + self.closure(function)
        own = {n: function.__globals__[n] for n in sorted(names_in(code)) if n in function.__globals__}
        used = ",".join(f"{n}={self.value(v)}" for n, v in own.items())
        defaults = self.value([function.__defaults__, function.__kwdefaults__])
        return f"function {name} {_code(code)} uses[{used}] defaults{defaults}" + self.closure(function)

    def closure(self, function: Callable[..., Any]) -> str:
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.value(cell.cell_contents))
            except ValueError:  # a cell that is still empty
                cells.append("empty")
        return f" closure[{','.join(cells)}]" if cells else ""


def _code(code: types.CodeType) -> str:
    """A hash of what a function does; line numbers and file names do not count."""
    found = hashlib.blake2b(code.co_code, digest_size=16)
    for constant in code.co_consts:
        text = _code(constant) if isinstance(constant, types.CodeType) else repr(constant)
        found.update(text.encode())
    found.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    return found.hexdigest()


def _stamp(file: str | None) -> str:
    """Size and time of a library's file, the hash of a user's."""
    if file is None:
        return ""
    try:
        if in_library(file):
            status = Path(file).stat()
            return f"{status.st_size}.{status.st_mtime_ns}"
        return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""
