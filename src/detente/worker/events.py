"""What a worker tells its parent while it runs: one JSON line per event, on a pipe of its own.

Standard output and error belong to the frameworks, which print what they like there; the parent keeps them as a log.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from detente.records.codec import to_json

PIPE = "DETENTE_EVENTS_FD"


class Events:
    """The worker's end of the pipe. Without a pipe (a worker started by hand) the lines go to standard output."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "w", buffering=1)
        self._pipe = _identity(fd)
        self.phase_name = "start"

    def phase(self, name: str, **details: Any) -> None:
        """A phase begins, or goes on with its part ``what``; the parent restarts its time-out and shows them."""
        self.phase_name = name
        self._send("phase", name=name, **details)

    def kept(self, said: str) -> None:
        """What is kept of the window: its SHA-256, or why nothing is. Said once, before the stack's code runs again."""
        self._send("kept", said=said)

    def result(self, evidence: Any) -> None:
        """The evidence. Always the last line."""
        self._send("evidence", evidence=to_json(evidence))

    def _send(self, event: str, **fields: Any) -> None:
        if _identity(self._file.fileno()) != self._pipe:
            raise RuntimeError(
                "the pipe to the parent was replaced: whoever reads it now could say anything in our name"
            )
        self._file.write(json.dumps({"event": event, "at": time.time(), **fields}) + "\n")
        self._file.flush()


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def open_events() -> Events:
    """The pipe that the parent named in the environment."""
    return Events(int(os.environ.get(PIPE, "1")))
