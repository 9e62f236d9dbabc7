"""Where the code that a stored program names stands now.

A program is named by what its code does, and an edit further up moves the lines of a function that does the same. What
a program says of its sources (an IndexError with file and line) is read with the lines of now.

How it can fail: a statement that was broken over several lines in between is named by one of them.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from io import BytesIO
from types import CodeType
from typing import Any

from detente.bridge.graph import Where
from detente.bridge.live.python import in_library

# (file, line) as a program says it -> as it is now.
Moved = Mapping[tuple[str, int], tuple[str, int]]
# Of a function its file, and (instruction, line) wherever the line becomes another one.
Lines = tuple[str, tuple[tuple[int, int], ...]]


def lines_of(codes: Sequence[CodeType]) -> tuple[Lines, ...]:
    """Of each function, in the order in which they were described. A library's files stay as they are while a program
    fits."""
    return tuple((code.co_filename, () if in_library(code.co_filename) else _lines(code)) for code in codes)


def _lines(code: CodeType) -> tuple[tuple[int, int], ...]:
    return tuple((start, line) for start, _, line in code.co_lines() if line is not None)


def moved(then: Sequence[Lines], codes: Sequence[CodeType]) -> Moved:
    """What stands elsewhere than it did. Both are in the same order: what does the same is described alike."""
    found: dict[tuple[str, int], tuple[str, int]] = {}
    now = lines_of(codes)
    if now == tuple(then) or len(now) != len(then):
        return found
    for (file, old), (other, new) in zip(then, now, strict=True):
        if (file, old) == (other, new) or not new:
            continue
        starts = [start for start, _ in new]
        for start, line in old:
            found.setdefault((file, line), (other, new[max(bisect_right(starts, start) - 1, 0)][1]))
    return found


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes, lines: Moved) -> None:
        super().__init__(BytesIO(data))
        self._lines = lines

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return self._where if found is Where else found

    def _where(self, file: str, line: int, code: str) -> Where:
        return Where(*self._lines.get((file, line), (file, line)), code)


def loads(data: bytes, lines: Moved) -> Any:
    """What was pickled, with each ``Where`` at its place of now."""
    return _Reader(data, lines).load() if lines else pickle.loads(data)
