"""What glibc's allocator would hold of a course of tensors: the course is asked of the allocator itself.

A process holds more than its tensors. What is freed stays with the heap where the row keeps it
(``MALLOC_MMAP_MAX_=0``), and a block finds a hole that is a little too small, so that the heap grows over holes of
several sizes. How much that is hangs on every size and on their order, and no share of the peak would say it: a course
that a plan recorded is therefore allocated and freed once more, in a process with the row's own settings. Nobody writes
to the blocks, so that the pages of a model that is larger than the machine are no memory; the allocator's own headers
are.

Tested with glibc 2.36 (tests/stacks/test_allocator_replay.py); where the C library has no such allocator, None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import NamedTuple

# torch's CPU allocator asks for 64 bytes (c10/core/alignment.h).
_ALIGNMENT = 64
# Bit of a chunk's size, in the word before the block: the block is a mapping of its own and goes back when it is freed.
_MAPPED = 2


class Event(NamedTuple):
    """A block is made (``size`` bytes), or freed (None). ``block`` names it for as long as it lives."""

    block: int
    size: int | None


def held(events: Iterable[Event], since: int) -> int | None:
    """Bytes of pages that blocks lie in at the worst moment after event number ``since``, when what was free until
    then has gone back to the system. None where the allocator cannot be asked, or refuses a block."""
    try:
        library = ctypes.CDLL(None)
        make, free = library.posix_memalign, library.free
        library.gnu_get_libc_version  # noqa: B018  another library's chunks look different
    except (OSError, AttributeError):
        return None
    make.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t)
    free.argtypes = (ctypes.c_void_p,)
    free.restype = None
    places: dict[int, tuple[int, int]] = {}
    touched: list[tuple[int, int]] = []
    mapped = most_mapped = 0
    try:
        for number, event in enumerate(events):
            if number == since:
                touched = [p for p in places.values() if not _is_mapped(p[0])]
                most_mapped = mapped
            if event.size is None:
                address, size = places.pop(event.block)
                mapped -= size if _is_mapped(address) else 0
                free(address)
                continue
            found = ctypes.c_void_p()
            if make(ctypes.byref(found), _ALIGNMENT, max(event.size, 1)) or not found.value:
                return None
            places[event.block] = found.value, event.size
            if _is_mapped(found.value):
                mapped += event.size
                most_mapped = max(most_mapped, mapped)
            elif number >= since:
                touched.append(places[event.block])
    finally:
        for address, _ in places.values():
            free(address)
    return _union(touched) + most_mapped


def _is_mapped(address: int) -> bool:
    return bool(ctypes.c_size_t.from_address(address - ctypes.sizeof(ctypes.c_size_t)).value & _MAPPED)


def _union(spans: list[tuple[int, int]]) -> int:
    """Bytes that lie in any of the spans (address, size)."""
    total = end = 0
    for address, size in sorted(spans):
        total += max(0, address + size - max(end, address))
        end = max(end, address + size)
    return total
