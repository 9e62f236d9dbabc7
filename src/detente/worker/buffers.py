"""Host memory for the states that a window hands out, written before the window begins.

A page that is touched for the first time costs a fault, and on a virtual machine a second one in the host wherever the
host took the page back: copying 1.5 GB took 0.2 s into memory that had been written, and up to 6.8 s into new memory. A
hand-out that pays for that looks like one that still has work to do, and a process that writes three such states first
spends 16 to 20 s on it. So the memory is the session's (an anonymous file that its timing processes inherit, one after
the other), and is new to the first of them alone. Where ``prepare`` knows what a state takes, it writes the file ahead
while the reference still computes: then it is new to none.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Mapping
from time import perf_counter_ns  # bound here: this module is imported before any file of a user's
from typing import Any

import numpy as np

# Of every array, so that none shares a cache line with another.
_ALIGNED = 64
# Of one write ahead.
_WRITTEN = 16 << 20
# A tensor of a state: its name, its elements, and the bytes of one.
Part = tuple[str, int, int]
# A copy that takes as long as this is no matter of a cold cache, and is not taken again.
_LONG_COPY_NS = 100_000_000


class Buffers:
    """Room for ``number`` states like ``state`` at a time; what does not fit it is copied to new memory. ``file``: the
    session's, -1 where there is none. ``parts``: of that state."""

    def __init__(self, state: Mapping[str, np.ndarray], number: int, file: int = -1) -> None:
        arrays = {str(name): numbers(array) for name, array in state.items()}
        self.parts = parts_of(arrays)
        one = sum(_span(a) for a in arrays.values())
        memory = _memory(file, max(1, one * number))
        self._free = [_room(arrays, memory[i * one : (i + 1) * one]) for i in range(number)]

    def copy(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A copy of a state that shares nothing with what was given."""
        room = self._free.pop() if self._free else {}
        return {str(name): _copied(array, room.get(str(name))) for name, array in given.items()}

    def copy_ns(self) -> int:
        """Nanoseconds that copying one state takes where both ends are memory of ours: of a large one once, else the
        best of three. No code of the stack's runs in it. 0 where there are not two rooms."""
        taken: list[int] = []
        while len(self._free) > 1 and len(taken) < 3 and sum(taken) < _LONG_COPY_NS:
            begun = perf_counter_ns()
            for name, array in self._free[0].items():
                np.copyto(self._free[1][name], array)
            taken.append(perf_counter_ns() - begun)
        return max(1, min(taken)) if taken else 0

    def give_back(self, state: dict[str, np.ndarray]) -> None:
        """``state`` is a copy that nobody needs any more: the next one may be written over it."""
        self._free.append(state)


def parts_of(state: Mapping[str, np.ndarray]) -> frozenset[Part]:
    """The parts of a state."""
    return frozenset((name, array.size, array.dtype.itemsize) for name, array in state.items())


def held_already(file: int) -> int:
    """Bytes that the session's file has."""
    return os.fstat(file).st_size if file >= 0 else 0


class Ahead:
    """Writes ``size`` bytes of the session's file on a thread, so that its pages are there when they are first wanted;
    ``wait`` for it. What cannot be had is left to the process that wants it, which says so."""

    def __init__(self, file: int, size: int) -> None:
        self._thread = threading.Thread(target=_write, args=(file, size), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all is written."""
        self._thread.join()


def _write(file: int, size: int) -> None:
    zeros = bytes(_WRITTEN)
    with contextlib.suppress(OSError):
        # A write lets go of the interpreter, which touching a mapped page does not.
        for start in range(held_already(file), size, _WRITTEN):
            os.pwrite(file, zeros[: size - start], start)


def _memory(file: int, size: int) -> np.ndarray:
    if file >= 0 and held_already(file) < size:
        os.ftruncate(file, size)
    # Mapped whole at once: page by page, 1.5 GB that are there already take 1.7 s instead of 0.3.
    flags = mmap.MAP_SHARED if file >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = np.frombuffer(mmap.mmap(file, size, flags | getattr(mmap, "MAP_POPULATE", 0)), np.uint8)
    memory[:: mmap.PAGESIZE] = 0
    return memory


def _span(array: np.ndarray) -> int:
    return -(-array.nbytes // _ALIGNED) * _ALIGNED


def _room(arrays: Mapping[str, np.ndarray], memory: np.ndarray) -> dict[str, np.ndarray]:
    found, start = {}, 0
    for name, array in arrays.items():
        # In the order of the array's own memory: a transposed view is then copied from front to back.
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        part = memory[start : start + array.nbytes].view(array.dtype)
        found[name] = part.reshape(array.shape, order=order)
        start += _span(array)
    return found


def numbers(array: Any) -> np.ndarray:
    """What a stack gave, as numpy's own array of numbers: this runs its code (``__array__``, ``__float__``), and
    nothing that is done with the array afterwards does. It may still be the stack's memory."""
    found = np.asarray(array)
    return found.astype(np.float64) if found.dtype.hasobject else found


def _copied(array: Any, room: np.ndarray | None) -> np.ndarray:
    # Whatever a stack gives: what is no array, or another one than before, is copied too.
    plain = numbers(array)
    if room is None or (plain.shape, plain.dtype) != (room.shape, room.dtype):
        return np.array(plain)
    np.copyto(room, plain)
    return room
