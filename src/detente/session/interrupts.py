"""Ctrl-C: once finishes the running process, twice kills it."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Counts SIGINT and SIGTERM while it is entered. ``fd`` becomes readable on each, so that a sleeping ``select``
    wakes; ``count`` says how often. Outside the main thread signals cannot be caught, and nothing is counted."""

    def __init__(self) -> None:
        self.count = 0
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._old: dict[int, Any] = {}
        self._taps: set[Tap] = set()

    def __enter__(self) -> Interrupts:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._hear)
        except ValueError:
            self._old = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        # SIGTERM is somebody's wish that this ends now: it counts as the second Ctrl-C.
        self.count += 2 if number == signal.SIGTERM else 1
        os.write(self._write, b"!")
        for tap in tuple(self._taps):
            tap.wake()

    def tap(self) -> Tap:
        """A readable end of one's own: of several that sleep on ``fd``, one would drain it and the others sleep on."""
        tap = Tap(self)
        self._taps.add(tap)
        if self.count:
            tap.wake()
        return tap

    def untap(self, tap: Tap) -> None:
        """Nobody sleeps on this one any more."""
        self._taps.discard(tap)
        tap.close()

    def drain(self) -> None:
        """Forget that ``fd`` was readable."""
        os.read(self.fd, 64)


class Tap:
    """Interrupts as one of several watchers sees them: the same ``count``, an ``fd`` that it alone drains."""

    def __init__(self, source: Interrupts) -> None:
        self._source = source
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)

    @property
    def count(self) -> int:
        """How often a signal came, as in Interrupts."""
        return self._source.count

    def drain(self) -> None:
        """Forget that ``fd`` was readable."""
        os.read(self.fd, 64)

    def wake(self) -> None:
        """A signal came."""
        os.write(self._write, b"!")

    def close(self) -> None:
        """Give both ends back."""
        os.close(self.fd)
        os.close(self._write)
