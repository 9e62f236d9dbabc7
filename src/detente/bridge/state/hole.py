"""The place that every step computes in, kept whole, and whether it is free.

A step asks the C library for one block and gives it back, and as freed memory is kept (kept.py) it lies in the same
place every time, or the process holds two. Three things took the place away:

- **Something lay in it** that was made between two steps. It has a place of its own now (ground.py).
- **It was worn.** For an aligned block glibc takes 96 bytes more and frees what is left of them, before or behind it.
  Whoever gets these and keeps them makes the place too small by as much. The wall before it then gives up a piece.
- **The last step had not left it.** A loss is ready before the block is free: the thread of XLA's that runs the step
  says so first, and is often put to sleep for whom it has woken. Nothing of JAX's can be waited for, so that the
  allocator is asked where a block would lie.

How it can fail: what lies between steps outgrows the cushion, or the wall is used up. Then the wait ends after
``PATIENCE_S`` and the next place counts as well; after ``MISSES`` such waits nobody asks any more.
"""

from __future__ import annotations

import time

from detente.bridge.state.ground import PIECE, Ground

# A thread that was put to sleep runs again within a millisecond, mostly; on a machine that is shared 50 were too few.
PATIENCE_S, PAUSE_S = 0.5, 5e-5
MISSES = 3
# What posix_memalign, which XLA's client calls, asks malloc for beside the bytes: an alignment, and the smallest chunk.
_BESIDE = 64 + 32
# Bytes by which a place that was worn is too small: its edges, and what got into a piece that was not all needed.
_WORN = 16 * PIECE


class Hole:
    """Where blocks of ``size`` bytes lie, of which every step asks for one and gives it back. Made before the first of
    those steps."""

    def __init__(self, size: int, ground: Ground) -> None:
        self._ground, self._size = ground, size + _BESIDE
        ground.lay(self._size)
        self._places = [ground.lies(self._size)]

    def wait(self) -> None:
        """Until a step's block would lie where one has before. Called when the last step's results are ready."""
        if self._missed == MISSES:
            return
        until = time.perf_counter() + PATIENCE_S
        while not self._known(place := self._ground.lies(self._size)):
            if self._mended():
                continue
            if time.perf_counter() > until:
                self._places.append(place)
                return
            time.sleep(PAUSE_S)

    @property
    def _missed(self) -> int:
        """Waits that ended without the block."""
        return len(self._places) - 1

    def _mended(self) -> bool:
        """Whether the place was worn, and is larger by a piece now."""
        worn = self._ground.lies(self._size - _WORN)
        return worn != 0 and self._known(worn) and self._ground.widen(worn)

    def _known(self, place: int) -> bool:
        """Of the hole's neighbours some are free now and then, and it begins a little earlier. For what has no place,
        because there is no memory, nobody waits."""
        return not place or any(abs(place - known) < self._size // 8 for known in self._places)
