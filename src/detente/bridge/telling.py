"""What a call is doing, when it takes longer than a second: a silence of half a minute looks like a hang.

A terminal has one line that is written over (``detente: Linear: compile 12 s``), a notebook plain lines, everything
else the logger ``detente`` at level INFO. ``quiet`` says nothing anywhere.

``telling`` stands around a call that may take long, ``phase`` around its parts; inside of another ``telling`` it is a
part of that one. Without one around it a ``phase`` does nothing. Nothing of this is on the path of a step that has its
program and its certificate.

How it can fail: a ticker thread writes, so it must end with the call whatever ends that. It is stopped in a
``finally``; and should an interrupt come between any two lines of that, it looks itself whether the call's own record
is still alive. A stream that cannot be written to (closed, or a pipe without a reader) ends the telling, never the
call.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from detente.bridge.live import interrupts

QUIET_FOR = 1.0  # seconds; a call that takes less says nothing
EVERY = 0.25  # seconds between two looks of the ticker
SHORT = 0.05  # seconds; a phase that takes less is left out of the last line, which would call it 0.0
_log = logging.getLogger("detente")


class _Current(threading.local):
    """The telling that this thread is in."""

    # Weak: what an interrupt leaves behind here is not alive.
    call: Callable[[], _Call | None] = staticmethod(lambda: None)


class _Call:
    """One call: what it is, which phases it is in (outermost first), and the seconds of those that are done."""

    def __init__(self, what: str) -> None:
        self.what, self.begun = what, time.monotonic()
        self.inside: list[str] = []
        self.done: dict[str, float] = {}  # by outermost phase

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    @property
    def now(self) -> str:
        return ": ".join(self.inside.copy())  # the ticker reads while the call goes on

    def end(self) -> str:
        """All of it in a line. Phases that took no time to speak of are left out."""
        parts = [f"{name} {took:.1f}" for name, took in self.done.copy().items() if took >= SHORT]
        return f"{self.what}: {self.seconds:.1f} s" + (f" ({', '.join(parts)})" if parts else "")


class _Line:
    """One line of a terminal, written over. Spaces and no escape codes: every terminal knows them."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.length = stream, 0

    def tick(self, call: _Call) -> None:
        phase = call.now
        text = f"detente: {call.what}: {phase + ' ' if phase else ''}{call.seconds:.0f} s"
        if interrupts.waiting():
            text += " (Ctrl-C waits for a safe place; once more stops at once)"
        self._write(text)

    def end(self, call: _Call, failed: bool) -> None:
        # Of what failed the error tells; the line goes, so that the traceback does not begin in it.
        self._write("" if failed else f"detente: {call.end()}")
        self.stream.write("\r" if failed else "\n")
        self.stream.flush()

    def _write(self, text: str) -> None:
        text = text[
            : max(shutil.get_terminal_size().columns - 1, 20)
        ]  # a line that wraps cannot be written over
        self.stream.write("\r" + text.ljust(self.length))
        self.stream.flush()
        self.length = len(text)


class _Lines:
    """A line for every phase that is entered, once the call has taken a second, and one at the end."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.said = say, ""

    def tick(self, call: _Call) -> None:
        now = f"{call.what}: {call.now}" if call.now else call.what
        if now != self.said:
            self.say(f"{now}, after {call.seconds:.0f} s")
            self.said = now

    def end(self, call: _Call, failed: bool) -> None:
        self.say(f"{call.what}: ended by an error after {call.seconds:.1f} s" if failed else call.end())


def _place() -> _Line | _Lines:
    """Where it is told: decided when a call begins, because streams are replaced while a program runs."""
    stream = sys.stderr
    try:
        if stream is not None and stream.isatty():
            return _Line(stream)
    except ValueError:  # it is closed
        pass
    if type(stream).__module__.startswith("ipykernel."):
        return _Lines(lambda text: print(f"detente: {text}", file=stream, flush=True))
    return _Lines(_log.info)


def _tick(call: weakref.ref[_Call], place: _Line | _Lines, stop: threading.Event) -> None:
    """The ticker: until it is stopped, or the call that it tells of is gone."""
    wait = QUIET_FOR
    while not stop.wait(wait):
        held = call()
        if held is None:
            return
        try:
            place.tick(held)
        except (OSError, ValueError):
            return
        del held  # or it would keep alive what it asks for
        wait = EVERY


@contextmanager
def telling(what: str, quiet: bool) -> Iterator[None]:
    """Tell what happens inside, by its phases, when it takes longer than a second."""
    if quiet or _current.call() is not None:
        yield
        return
    call, place, stop = _Call(what), _place(), threading.Event()
    ticker = threading.Thread(
        target=_tick, args=(weakref.ref(call), place, stop), name="detente telling", daemon=True
    )
    failed = True
    _current.call = weakref.ref(call)
    try:
        ticker.start()
        yield
        failed = False
    finally:
        stop.set()
        del _current.call
        if ticker.ident is not None:
            ticker.join()
        if call.seconds >= QUIET_FOR:
            with suppress(OSError, ValueError):
                place.end(call, failed)


@contextmanager
def phase(name: str, which: str = "") -> Iterator[None]:
    """A part of what is told: ``capture``, ``lower``, ``compile``, ``certify``, ``tune``; ``which`` of several."""
    call = _current.call()
    if call is None:
        yield
        return
    outermost, begun = not call.inside, time.monotonic()
    call.inside.append(f"{name} {which}" if which else name)
    try:
        yield
    finally:
        call.inside.pop()
        if outermost:
            call.done[name] = call.done.get(name, 0.0) + time.monotonic() - begun


_current = _Current()
