"""glibc's allocator, as this process has it."""

from __future__ import annotations

import ctypes
from typing import Any


def glibc() -> Any:
    """Its functions; None where another C library answers (musl has a malloc without these settings)."""
    size, address, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018
        library.mallopt.argtypes = (number, number)
        library.malloc_trim.argtypes = (size,)
        library.malloc.argtypes, library.malloc.restype = (size,), address
        library.realloc.argtypes, library.realloc.restype = (address, size), address
        library.free.argtypes, library.free.restype = (address,), None
    except (OSError, AttributeError):
        return None
    return library
