"""Host memory for the states that a window hands out, written once before the window begins.

A page that is touched for the first time costs a fault, and on a virtual machine sometimes a second one in the host.
Copying 1.5 GB took 0.2 s into memory that had been written, 1.2 s into new pages of 4 KiB, and 6.8 s into new huge
pages, which the host had not had yet (numpy asks for those). A hand-out that pays for that looks like one that still
has work to do.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import numpy as np

# Of every array, so that none shares a cache line with another.
_ALIGNED = 64


class Buffers:
    """Room for ``number`` states like ``state`` at a time; what does not fit it is copied to new memory."""

    def __init__(self, state: Mapping[str, np.ndarray], number: int) -> None:
        self._free = [_room(state) for _ in range(number)]

    def copy(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A copy of a state that shares nothing with what was given."""
        room = self._free.pop() if self._free else {}
        return {str(name): _copied(array, room.get(str(name))) for name, array in given.items()}

    def give_back(self, state: dict[str, np.ndarray]) -> None:
        """``state`` is a copy that nobody needs any more: the next one may be written over it."""
        self._free.append(state)


def _room(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    arrays = {str(name): np.asarray(array) for name, array in state.items()}
    spans = {name: -(-a.nbytes // _ALIGNED) * _ALIGNED for name, a in arrays.items()}
    # Pages of our own: numpy's would be huge ones, see above.
    memory = np.frombuffer(mmap.mmap(-1, max(1, sum(spans.values()))), np.uint8)
    memory.fill(0)
    found, start = {}, 0
    for name, array in arrays.items():
        # In the order of the array's own memory: a transposed view is then copied from front to back.
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        part = memory[start : start + array.nbytes].view(array.dtype)
        found[name] = part.reshape(array.shape, order=order)
        start += spans[name]
    return found


def _copied(array: np.ndarray, room: np.ndarray | None) -> np.ndarray:
    # Whatever a stack gives: what is no array, or another one than before, is copied too.
    if room is None or (getattr(array, "shape", None), getattr(array, "dtype", None)) != (
        room.shape,
        room.dtype,
    ):
        return np.array(array)
    np.copyto(room, array)
    return room
