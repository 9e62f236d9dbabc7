"""One line on standard error while a program is made: a silence of half a minute looks like a hang."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def telling(what: str, progress: bool | None) -> Iterator[None]:
    """``detente: WHAT ...`` before, and how long it took after. ``progress``: None only where standard error is a
    terminal; False never. Nothing is said of what failed: the error says it."""
    stream = sys.stderr
    if not (stream.isatty() if progress is None else progress):
        yield
        return
    print(f"detente: {what} ...", end="", file=stream, flush=True)
    begun = time.monotonic()
    try:
        yield
    except BaseException:
        print(file=stream, flush=True)
        raise
    print(f" {time.monotonic() - begun:.1f} s", file=stream, flush=True)
