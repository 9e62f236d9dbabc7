"""How the allocators of torch, XLA, numpy and the C++ runtime say that memory is gone, and what they were asked for
(measured under RLIMIT_DATA)."""

from __future__ import annotations

import re

_GONE = re.compile(
    r"can't allocate memory|out of memory|RESOURCE_EXHAUSTED|bad_alloc|Cannot allocate memory|OutOfMemory"
    r"|allocation still failed|failed to map segment",
    re.IGNORECASE,
)
_ASKED = re.compile(r"(?:allocate|allocating) ([\d.,]+) ?(bytes|B|[kKMGT]i?B)\b")
_UNITS = {"b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def is_out_of_memory(text: str) -> bool:
    """Whether an error text, or the tail of a dead worker's log, says that memory ran out."""
    return bool(_GONE.search(text))


def asked_bytes(text: str) -> int | None:
    """The bytes that the allocation asked for which failed last; None where no text says.

    >>> asked_bytes("DefaultCPUAllocator: can't allocate memory: you tried to allocate 400000 bytes. Error code 12")
    400000
    >>> asked_bytes("RESOURCE_EXHAUSTED: Out of memory allocating 1.50GiB")
    1610612736
    >>> asked_bytes("terminate called after throwing an instance of 'std::bad_alloc'")
    """
    found = _ASKED.findall(text)
    if not found:
        return None
    number, unit = found[-1]
    units = _BINARY if "i" in unit else _UNITS
    return int(float(number.replace(",", "").rstrip(".")) * units[unit[0].lower()])
