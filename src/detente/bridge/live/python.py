"""What can be told of Python's values and code without running any: which values hold nothing else, what code names,
and whether a file is a library's."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

# values that hold nothing else
PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    slice,
    range,
)
MADE_BY_FX = "<eval_with_key>"  # the file of code that torch.fx, and so a capture, writes
_LIBRARIES = (
    "site-packages",
    "dist-packages",
    str(Path(torch.__file__ or "torch").parent),
    str(Path(types.__file__ or "types").parent),
)


def names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def in_library(file: str | None) -> bool:
    return file is None or any(part in file for part in _LIBRARIES)


def of_library(name: str) -> bool:
    """Whether a module of Python's, by its name, is a library's. What was typed in (a notebook, ``python -c``,
    ``exec``) has no file, and is the user's; Python's own in C have none either."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is not None:
        return in_library(file)
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    of_top = getattr(sys.modules.get(top), "__file__", None)
    return of_top is not None and in_library(of_top)


def imported(names: Iterable[str], known: Mapping[str, Any]) -> Iterator[types.ModuleType]:
    """The user's modules that a function imports when it runs. ``names``: those in its code; ``known``: its globals."""
    package = known.get("__package__") or ""
    inside = [package.rsplit(".", depth)[0] for depth in range(package.count(".") + 1)] if package else []
    for name in sorted(names):
        for full in (name, *(f"{outer}.{name}" for outer in inside)):
            module = sys.modules.get(full)
            if type(module) is types.ModuleType and known.get(name) is not module and not of_library(full):
                yield module
