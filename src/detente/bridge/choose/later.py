"""``Later``: what is compiled while training goes on.

A thread traces, lowers and compiles; XLA's part of it holds no lock of Python's, but takes a core. So it begins only
when training has lasted as long as that is going to take: a script of ten steps never pays for it, and none pays twice.

How it can fail: an interpreter that ends while it compiles waits for it (a thread that was torn down inside of XLA
would take the process with it), some ten seconds at most, and no longer than training took.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

Found = TypeVar("Found")


class Later(Generic[Found]):
    """``make()`` in a thread of its own, begun ``after`` seconds from the first time that somebody asks."""

    def __init__(self, make: Callable[[], Found], after: float) -> None:
        self._make, self._after = make, after
        self._asked: float | None = None
        self._thread: threading.Thread | None = None
        self._found: Found | None = None
        self.failed: Exception | None = None

    def found(self) -> Found | None:
        """What was made, or None as long as there is nothing; begins to make it when it is time. Raises nothing:
        ``failed`` says why nothing will come."""
        if self._asked is None:
            self._asked = monotonic()
        if self._thread is None and monotonic() - self._asked >= self._after:
            self._thread = threading.Thread(target=self._run, name="detente later")
            self._thread.start()
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._make()
        except Exception as error:
            self.failed = error
