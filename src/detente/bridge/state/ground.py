"""What the place that steps compute in (hole.py) is laid on, once in a process: cushions, free, and walls, in use.

glibc takes the smallest hole that is large enough. Of all that is made between two steps (a batch, above all) that was
the place where the block of the last one had been; the cushions are smaller, and found first. Walls keep them and the
place holes of their own, and pieces of the last one make good what the place has lost at its edges. None of it is ever
touched: its pages are memory only where something lies.
"""

from __future__ import annotations

from typing import Any

from detente.bridge.state.glibc import glibc

# Bytes of the wall, and of a piece of it: of what is smaller than a page malloc keeps lists, and joins it to nothing.
WALL, PIECE = 1 << 20, 4096
# Bytes that malloc keeps of a chunk for itself, and those that XLA aligns its blocks to.
_HEAD, _ALIGNED = 8, 64
# The cushions, as parts of a block. Another step's block that fits into one takes memory of its own, a larger one
# shares the place; two batches of a third of a block must find room.
_CUSHIONS = (0.4, 0.4, 0.25, 0.25)
_TRIES = 8


class Ground:
    """``library``: with ``malloc``, ``realloc`` and ``free``; glibc's if not given."""

    def __init__(self, library: Any = None) -> None:
        self.library = library if library is not None else glibc()
        self._left = self._for = 0
        self._walls: list[int] = []

    def lay(self, size: int) -> None:
        """For blocks of ``size`` bytes, which lie behind the last wall from then on, at the heap's end. Nothing where
        it was laid for as large ones: the smaller block of another step finds room in the same place.

        What is as large as a block is found at the end. A cushion may be found in a hole that is there, and all of it
        is then laid again."""
        if size <= self._for:
            return
        passing, span = self._walls, sum(int(size * part) + WALL for part in _CUSHIONS)
        self._left, self._for, self._walls = 0, 0, []
        for _ in range(_TRIES):
            wall, left = self._at_end(size)
            walls, cushions = [wall], []
            for part in _CUSHIONS:
                cushions.append(self.library.malloc(int(size * part)) or 0)
                wall, left = self._at_end(size)
                walls.append(wall)
            passing += cushions
            if all(walls + cushions) and abs(wall - walls[0] - span) < PIECE:
                self._left, self._walls, self._for = left, walls, size
                break
            passing += walls
        for block in passing:
            self.library.free(block)

    def _at_end(self, size: int) -> tuple[int, int]:
        """A wall and its bytes: as large as a block, and made small where it lies. What is behind it is aligned as a
        block is, or something could get between the two."""
        wall = self.library.malloc(size + WALL) or 0
        left = WALL - (wall + WALL) % _ALIGNED
        return self.library.realloc(wall, left - _HEAD) or 0, left

    def widen(self, place: int) -> bool:
        """The hole at ``place`` begins a piece earlier now. False where it is not the one behind the last wall, or the
        wall is used up."""
        if self._left <= 2 * PIECE or abs(place - self._walls[-1] - self._left) >= PIECE:
            return False
        self._left -= PIECE
        self.library.realloc(self._walls[-1], self._left - _HEAD)  # made smaller, nothing moves
        return True

    def lies(self, size: int) -> int:
        """Address that a block would have now; 0 where there is no memory for it. It is made and given back at once."""
        place = self.library.malloc(size) or 0
        self.library.free(place)
        return place
