"""What can be told of Python's values and code without running any: which values hold nothing else, what code names,
and whether a file is a library's."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path

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
