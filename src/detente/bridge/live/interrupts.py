"""Ctrl-C inside of a call of ours: it waits for a place where nothing is half done.

While a program is captured, names of torch's are replaced; while a step is written back, half of the module is new. An
interrupt there would leave that so: a ``finally`` is code like any other, and is interrupted too. So SIGINT is noted
while a call of ours runs, and raised at the next ``safe`` place or at the call's end, by the handler that was there
before. A second one is raised where it comes: who presses twice does not want to wait.

How it can fail: code of the user's that runs inside (a loss while it is captured) and puts a handler of its own in
place is heard by that handler. Only the main thread handles signals; in another one there is nothing to hold back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class _Pressed:
    """The interrupt that waits, and the handler that will be told of it."""

    now: tuple[int, FrameType | None] | None = None
    handler: Callable[[int, FrameType | None], Any] | None = None


def _note(number: int, frame: FrameType | None) -> None:
    if _Pressed.now is not None:
        _tell()
    else:
        _Pressed.now = (number, frame)


def _tell() -> None:
    pressed, _Pressed.now = _Pressed.now, None
    if pressed is not None and _Pressed.handler is not None:
        _Pressed.handler(*pressed)


class held_back:  # noqa: N801  (a context, written as one; a generator costs three times as much)
    """SIGINT that arrives inside is handled at the end, or at a ``safe`` place. Inside of another one: nothing more."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before: Any = None
        before = signal.getsignal(signal.SIGINT)
        if before is _note or not callable(before):
            return
        if threading.current_thread() is threading.main_thread():
            # The handler is what says that one is at work: nothing else has to be kept in step with it.
            _Pressed.now, _Pressed.handler, self._before = None, before, before
            signal.signal(signal.SIGINT, _note)

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            if signal.getsignal(signal.SIGINT) is _note:
                signal.signal(signal.SIGINT, self._before)
            _tell()


def waiting() -> bool:
    """Whether an interrupt waits for a safe place. Any thread may ask."""
    return _Pressed.now is not None


def safe() -> None:
    """Nothing is half done here: an interrupt that waits is raised now."""
    waits = _Pressed.now is not None and signal.getsignal(signal.SIGINT) is _note
    if waits and threading.current_thread() is threading.main_thread():
        _tell()
