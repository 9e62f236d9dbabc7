"""Host memory for the states that a window hands out, written once before the window begins.

A page that is touched for the first time costs a fault, and on a virtual machine a second one in the host: 512 MiB took
0.08 s into memory that had been written, 0.2 to 0.9 s into new memory of this process and 4.4 s into memory that the
machine itself had not had yet. A hand-out that pays for that looks like one that has work to do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class Buffers:
    """Room for ``number`` states like ``state`` at a time; what does not fit it is copied to new memory."""

    def __init__(self, state: Mapping[str, np.ndarray], number: int) -> None:
        self._free = [{str(name): _written(array) for name, array in state.items()} for _ in range(number)]

    def copy(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A copy of a state that shares nothing with what was given."""
        room = self._free.pop() if self._free else {}
        return {str(name): _copied(array, room.get(str(name))) for name, array in given.items()}

    def give_back(self, state: dict[str, np.ndarray]) -> None:
        """``state`` is a copy that nobody needs any more: the next one may be written over it."""
        self._free.append(state)


def _written(array: np.ndarray) -> np.ndarray:
    # In the order of its own memory: a transposed view is copied from front to back.
    room = np.empty_like(array, subok=False)
    room.fill(0)
    return room


def _copied(array: np.ndarray, room: np.ndarray | None) -> np.ndarray:
    # Whatever a stack gives: what is no array, or another one than before, is copied too.
    if room is None or (getattr(array, "shape", None), getattr(array, "dtype", None)) != (
        room.shape,
        room.dtype,
    ):
        return np.array(array)
    np.copyto(room, array)
    return room
