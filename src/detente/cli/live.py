"""Progress on standard error: a live line when a person watches, one line per event otherwise."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from detente.report.text import clean
from detente.session.progress import Progress


class Lines:
    """One line per event that a log's reader wants: phases are left out."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: Progress) -> None:
        if event.kind == "phase":
            return
        count = f"[{event.done}/{event.total}] " if event.total and event.kind in ("start", "end") else ""
        eta = f", about {duration(event.eta_s)} left" if event.kind == "end" and event.eta_s else ""
        if event.kind != "start":
            print(f"{count}{clean(event.text)}{eta}", file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is kept open."""


class Live:
    """A single line that is rewritten in place: what runs, its phase, how far, how long still. Only written when an
    event arrives: a clock that ticks in the parent would tick on the machine that is being measured."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._begun, self._width = stream, time.monotonic(), 0

    def __call__(self, event: Progress) -> None:
        if event.kind in ("note", "plan"):
            self._write(clean(event.text) + "\n")
            return
        parts = [f"{event.done}/{max(event.total, event.done)}", clean(event.text)]
        if event.phase:
            parts.append(clean(event.phase))
        parts.append(duration(time.monotonic() - self._begun))
        if event.eta_s:
            parts.append(f"about {duration(event.eta_s)} left")
        self._write("  ".join(parts))

    def _write(self, text: str) -> None:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:
            columns = 80
        line = text if text.endswith("\n") else text[: columns - 1]
        pad = " " * max(0, self._width - len(line.rstrip("\n")))
        self._stream.write("\r" + (line[:-1] + pad + "\n" if line.endswith("\n") else line + pad))
        self._width = 0 if line.endswith("\n") else len(line)
        self._stream.flush()

    def close(self) -> None:
        """Wipe the line."""
        self._stream.write("\r" + " " * self._width + "\r")
        self._stream.flush()


def progress_sink() -> Lines | Live:
    """Live only when both standard output and standard error are terminals."""
    live = sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return Live(sys.stderr) if live else Lines(sys.stderr)


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``.

    >>> duration(185)
    '3 min 05 s'
    """
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
