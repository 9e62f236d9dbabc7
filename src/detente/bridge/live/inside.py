"""One thread at a time is inside of a call of a step, and what it does there is no read and no write of the user's."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch

from detente.bridge.live.forks import not_in_child
from detente.bridge.live.interrupts import held_back
from detente.bridge.private import set_grad

if TYPE_CHECKING:
    from detente.bridge.live.guard import Guard

ONE = threading.RLock()  # who is inside, of any step
INSIDE: list[FrameType] = []  # functions of every step that run: what one does is no write to another
_LEAVING: list[Callable[[], None]] = []
P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Another thread that calls it, or is inside of a step, waits: of two captures at once each would find the other's
    functions where torch's are, and leave them there."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with ONE:
            return function(*args, **kwargs)

    return alone


def running(calls: list[FrameType]) -> bool:
    """Whether one of these functions still runs; those that do not are forgotten."""
    while calls:
        try:
            calls[-1].clear()  # of a frame that runs this is an error, and changes nothing
        except RuntimeError:
            return True
        calls.pop()
    return False


def runs_here(calls: list[FrameType]) -> bool:
    """Whether one of these functions runs in this thread."""
    return ONE._is_owned() and running(calls)  # type: ignore[attr-defined]


def leave(last: Callable[[], None]) -> None:
    """What an object does when it is collected: now, or as soon as the thread that is inside of a step comes out. The
    collector runs anywhere: in another thread, which the one inside may be waiting for, and in the middle of a capture,
    whose fake tensors no real one may meet."""
    if ONE.acquire(blocking=False):
        try:
            if not running(INSIDE):
                last()
                return
        finally:
            ONE.release()
    _LEAVING.append(last)


class Away:
    """While the function that enters this runs, it is the step's own code: its guards see nothing.

    The function's frame is what is remembered, and not a count: an interrupt can come between an exit and its count,
    and a guard that stays blind loses every later write. A frame that no longer runs counts no more, whatever ended it.
    Ctrl-C is held back meanwhile, and every other thread that reads or writes what a step watches waits: half of the
    values would be of another step, and what it is told to write back would be gone. Raises Refused in a forked child.

    Whoever reads may be under ``torch.inference_mode``: what is made for them there (an optimizer's moments) would be
    inference tensors for good, which eager's next step may not write.
    """

    __slots__ = ("_calls", "_frame", "_held", "_ordinary")

    def __init__(self, *guards: Guard) -> None:
        not_in_child()
        self._calls = (INSIDE, *(guard.calls for guard in guards))
        self._held = held_back()

    def __enter__(self) -> None:
        self._held.__enter__()
        ONE.acquire()
        self._ordinary = torch.inference_mode(False) if torch.is_inference_mode_enabled() else None
        if self._ordinary is not None:
            self._ordinary.__enter__()
            set_grad(False)  # as before: a step that is called there has nothing to train (around.ambient)
        self._frame = sys._getframe(1)
        for calls in self._calls:
            calls.append(self._frame)

    def __exit__(self, *error: object) -> None:
        for calls in self._calls:
            if calls and calls[-1] is self._frame:
                calls.pop()
        del self._frame
        if self._ordinary is not None:
            self._ordinary.__exit__(None, None, None)
        ONE.release()
        while _LEAVING and not running(INSIDE):
            _LEAVING.pop()()
        self._held.__exit__(*error)
