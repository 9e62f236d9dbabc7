"""How far a session is, and what it says of that."""

from __future__ import annotations

from typing import Any

from detente.session.progress import Progress, Sink


class Tally:
    """``done`` processes of ``total``, as far as the plan is known, told to ``sink`` with every event."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.done, self.total = 0, 0

    @property
    def left(self) -> int:
        """Processes that are still planned."""
        return max(0, self.total - self.done)

    def say(self, text: str) -> None:
        """A note: something the user should know."""
        self.tell("note", text)

    def tell(self, kind: str, text: str, **fields: Any) -> None:
        """One event; ``fields`` are further fields of Progress."""
        self._sink(Progress(kind, text, done=self.done, total=max(self.total, self.done), **fields))
