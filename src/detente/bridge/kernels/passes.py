"""Loops that are written for one program (bridge/optim/one_pass.py): compiled once per machine, known by a key.

The key is the text's, the compiler's and the processor's. A stored program holds its keys, and finds the loops beside
the extension; where one is gone the program is compiled anew.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from detente.bridge.kernels.compiler import FLAGS, NATIVE, compiled

UPDATE = "detente_update"
# A multiplication and an addition are two roundings, as in the trace.
ARGUMENTS = (*FLAGS, f"-march={NATIVE}", "-ffp-contract=off", "-x", "c++", "-")
SECONDS = 30


def key_of(text: str, command: str, processor: Sequence[str]) -> int:
    found = hashlib.sha256(repr((text, ARGUMENTS, command, list(processor))).encode()).digest()
    return int.from_bytes(found[:8], "big") >> 1  # an attribute is a signed number of 64 bits


_GIVEN: dict[int, Any] = {}  # by key, as long as the process lives


def make(library: Any, key: int, text: str, command: str, place: Path) -> None:
    """The extension knows the loop from here on, compiled where it is not there yet or cannot be loaded. Raises OSError
    and SubprocessError."""
    try:
        give(library, key, place)
    except OSError:  # it is not there, or was cut short
        _file(key, place).unlink(missing_ok=True)
        compiled(_file(key, place), command, ARGUMENTS, SECONDS, text)
        give(library, key, place)


def give(library: Any, key: int, place: Path) -> None:
    """The extension knows the loop from here on. Raises OSError where its file is gone."""
    if key in _GIVEN:
        return
    loop = ctypes.CDLL(str(_file(key, place)))
    address = [ctypes.cast(getattr(loop, name), ctypes.c_void_p) for name in ("numbers", "loop")]
    library.detente_pass.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    library.detente_pass.restype = None
    library.detente_pass(key, *address, ctypes.c_longlong.in_dll(loop, "kept").value)
    _GIVEN[key] = loop


def _file(key: int, place: Path) -> Path:
    return place / f"update-{key:016x}.so"


def call(
    key: int, operands: Sequence[Any], arrays: int, layers: int | None = None, rows: bool = False
) -> list[Any]:
    """The update's results, each where its operand lay: all operands but the gradient (the second) and the group's row
    (the last) have one. ``arrays`` operands are arrays, in front. ``layers``: of a stack, along the first axis of all
    but the row, and of the row as well if there are ``rows``."""
    changed = [i for i in range(len(operands) - 1) if i != 1]
    sizes = {
        "key": key,
        "given": len(operands),
        "arrays": arrays,
        "results": arrays - 1,
        "layers": layers or 1,
    }
    return jax.ffi.ffi_call(
        UPDATE,
        [jax.ShapeDtypeStruct(operands[i].shape, operands[i].dtype) for i in changed],
        input_output_aliases={operand: result for result, operand in enumerate(changed)},
    )(*operands, rows=np.bool_(rows), **{name: np.int64(value) for name, value in sizes.items()})
