"""Read and write the safetensors format with numpy alone.

A worker has the standard library, numpy and its framework; the format is eight bytes of header length, a JSON
header and the bytes (https://github.com/huggingface/safetensors#format), and mapping it means that N workers share
one copy of the weights in the page cache.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from detente.workloads.narrow import BFLOAT16

_NAMES: dict[str, np.dtype | str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "BF16": BFLOAT16,
}
_CODES = {np.dtype(v): k for k, v in _NAMES.items()}


class Digest(Protocol):
    """What ``hashlib`` gives."""

    def update(self, data: Any, /) -> None: ...


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], digest: Digest | None = None) -> None:
    """Write, atomically: the file is there whole or not at all. ``digest`` is fed with its bytes from memory, so that
    it is of what was written and not of what somebody left there. Raises OSError when the disk says no."""
    header: dict[str, object] = {}
    offset = 0
    arrays = {n: np.asarray(a, order="C") for n, a in tensors.items()}
    for name, array in arrays.items():
        header[name] = {
            "dtype": _CODES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in (len(text).to_bytes(8, "little"), text, *arrays.values()):
                held = part if isinstance(part, bytes) else part.reshape(-1).view(np.uint8).data
                file.write(held)
                if digest is not None:
                    digest.update(held)
            file.flush()
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def map_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file, mapped read-only; pages are read when they are touched."""
    length, header = _header(path)
    data = (
        np.memmap(path, np.uint8, "r", offset=8 + length)
        if path.stat().st_size > 8 + length
        else np.empty(0, "u1")
    )
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        found[name] = data[start:end].view(_NAMES[entry["dtype"]]).reshape(entry["shape"])
    return found


def is_whole(path: Path) -> bool:
    """Whether the file is there and as long as its header says. Of a machine that went down while it was written, it
    may be neither."""
    try:
        length, header = _header(path)
        ends = [e["data_offsets"][1] for n, e in header.items() if n != "__metadata__"]
        return path.stat().st_size == 8 + length + max(ends, default=0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path} is cut: its header alone should have {length} bytes")
        return length, json.loads(file.read(length))


def write_whole(path: Path, text: str) -> None:
    """Write, atomically, as ``write_tensors`` does. Raises OSError when the disk says no."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
