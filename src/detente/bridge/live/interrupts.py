"""Ctrl-C inside of a call of ours, and a cluster's signals: they wait for a place where nothing is half done.

While a program is captured, names of torch's are replaced; while a step is written back, half of the module is new. An
interrupt there would leave that so: a ``finally`` is code like any other, and is interrupted too. So SIGINT is noted
while a call of ours runs, and raised at the next ``safe`` place or at the call's end, by the handler that was there
before. A second one is raised where it comes: who presses twice does not want to wait.

A handler of SIGTERM, SIGHUP or SIGUSR1 and 2 that saves the model is as common (a cluster's word before it takes the
machine), and finds in the middle of a step what belongs to none. It waits for the call's end, where it reads what was
trained; a second signal is handled where it comes. Not SIGALRM: who has set a clock wants it to ring while something
hangs.

How it can fail: code of the user's that runs inside (a loss while it is captured) and puts a handler of its own in
place is heard by that handler. Only the main thread handles signals; in another one there is nothing to hold back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]
HELD = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class _Pressed:
    """The signals that wait, each once, and the handlers that will be told of them."""

    now: dict[int, FrameType | None] = {}  # noqa: RUF012
    handlers: dict[int, Handler] = {}  # noqa: RUF012


def _note(number: int, frame: FrameType | None) -> None:
    if number in _Pressed.now:
        _tell((number,))
    else:
        _Pressed.now[number] = frame


def _tell(numbers: Sequence[int]) -> None:
    """Their handlers, one after the other; of those that raise the last one is heard, and none is passed over."""
    if not numbers:
        return
    number, *further = numbers
    try:
        if number in _Pressed.now:
            frame, handler = _Pressed.now.pop(number), _Pressed.handlers.get(number)
            if handler is not None:
                handler(number, frame)
    finally:
        _tell(further)


class held_back:  # noqa: N801  (a context, written as one; a generator costs three times as much)
    """Signals that arrive inside are handled at the end, SIGINT also at a ``safe`` place. Inside of another one nothing
    more is done."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before: list[tuple[int, Any]] = []
        if threading.current_thread() is not threading.main_thread():
            return
        for number in HELD:
            before = signal.getsignal(number)
            if before is not _note and callable(before):
                # The handler is what says that one is at work: nothing else has to be kept in step with it.
                _Pressed.now.pop(number, None)
                _Pressed.handlers[number] = before
                self._before.append((number, before))
                signal.signal(number, _note)

    def __exit__(self, *error: object) -> None:
        for number, before in self._before:
            if signal.getsignal(number) is _note:
                signal.signal(number, before)
        # Behind that: a handler may raise, and those of the others are in place by then.
        _tell([number for number, _ in self._before])


def waiting() -> bool:
    """Whether an interrupt waits for a safe place. Any thread may ask."""
    return signal.SIGINT in _Pressed.now


def safe() -> None:
    """Nothing is half done here: an interrupt that waits is raised now."""
    waits = waiting() and signal.getsignal(signal.SIGINT) is _note
    if waits and threading.current_thread() is threading.main_thread():
        _tell((signal.SIGINT,))
