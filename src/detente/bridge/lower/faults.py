"""The fault word: what torch raises and XLA swallows.

Every place that can fault gets a *site* while the program is traced. At run time the program carries one
int32, the smallest site that faulted (``NO_FAULT`` when none did), which is the one torch would have raised,
because sites are numbered in eager order. The word returns with the loss; reading the loss raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from detente.bridge.capture.guards import exception
from detente.bridge.graph import Where

NO_FAULT = 2**31 - 1


@dataclass
class Sites:
    """The sites of one program. The same node traced twice (jit after eval_shape, remat) keeps its number."""

    rows: list[tuple[str, Where]] = field(default_factory=list)
    known: dict[tuple[str, Where], int] = field(default_factory=dict)

    def number(self, message: str, where: Where) -> int:
        """The site of this message at this line; a new one on first sight."""
        row = (message, where)
        if row not in self.known:
            self.known[row] = len(self.rows)
            self.rows.append(row)
        return self.known[row]

    def error(self, word: int) -> Exception | None:
        """The exception that torch would have raised for this word, or None for ``NO_FAULT``.

        A message may begin with the name of a builtin exception (``"ValueError: ..."``); it is an IndexError
        otherwise.
        """
        if word == NO_FAULT:
            return None
        message, where = self.rows[word]
        kind, _, rest = message.partition(": ")
        own = exception(kind) if rest else None
        if own is not None:
            return own(f"{rest}\n    at {where}")
        return IndexError(f"{message}\n    at {where}")
