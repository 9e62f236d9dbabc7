"""What the session says while it runs; the CLI shows it, tests collect it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One event. ``kind``: ``plan``, ``start`` (a process), ``phase`` (of it), ``end`` (of it), ``block`` (whole),
    ``note`` (something the user should know), ``wait`` (for the machine's lock).

    done, total   processes finished and planned, as far as the plan is known
    eta_s         seconds until the plan is through, None while nothing has been measured
    """

    kind: str
    text: str
    cell: str = ""
    phase: str = ""
    done: int = 0
    total: int = 0
    eta_s: float | None = None


Sink = Callable[[Progress], None]
