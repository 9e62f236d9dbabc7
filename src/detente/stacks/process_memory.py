"""What this process has resident, as the system counts it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
from collections.abc import Mapping
from pathlib import Path


def resident() -> int:
    """Bytes that are resident now."""
    return _status("VmRSS")


def resident_beside(tensors: int) -> int:
    """Bytes that are resident beside ``tensors`` bytes, when what the C library keeps has gone back to the system."""
    forget_peak()
    return resident() - tensors


def peak() -> int:
    """The most bytes that were ever resident, a compiler's scratch included; or since ``forget_peak``."""
    return _status("VmHWM")


def forget_peak() -> bool:
    """The peak is what is resident now, and that is what is in use: what the C library keeps of loading and compiling
    goes back to the system first. False where the kernel does not let a process say so."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(name: str) -> int:
    """0 where the system does not tell."""
    try:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def keeps_freed(environ: Mapping[str, str] = os.environ) -> str:
    """What this process's allocator was told about freed memory, as one of its practices; empty for nothing.

    >>> keeps_freed({"MALLOC_MMAP_MAX_": "0"})
    "; freed memory is kept (glibc's MALLOC_MMAP_MAX_=0)"
    """
    if environ.get("MALLOC_MMAP_MAX_") != "0":
        return ""
    arena = ", in one arena" if environ.get("MALLOC_ARENA_MAX") == "1" else ""
    return f"; freed memory is kept (glibc's MALLOC_MMAP_MAX_=0{arena})"
