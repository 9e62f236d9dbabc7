"""The phases of a worker by the parent's clock and the kernel's account, which no code of the worker's can move."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
# So many phases are kept; a worker has a dozen, and what it says is not to be believed.
_MOST = 64


class PhaseWatch:
    """Wall time of every phase of the process ``pid``, from the message that it begins to the next message or the end,
    and the processor time of the one called ``name``, behind which ``then`` follows.

    ``seconds`` maps a phase to its wall time. ``wall_ns`` and ``cpu_ns`` (user and system time of all threads, in the
    kernel's ticks of 10 ms) are those of ``name``, right once ``over``.
    """

    def __init__(self, pid: int, name: str, then: str) -> None:
        self.pid, self.name, self.over = pid, name, False
        self.seconds: dict[str, float] = {}
        self.wall_ns = self.cpu_ns = 0
        self._disorder = ""
        self._phase, self._begun = "start", time.monotonic_ns()
        self._cpu: int | None = None
        self._order, self._heard = (name, then), 0

    def hear(self, phase: str) -> None:
        """The worker says that this phase begins; ``done``: that it has said everything."""
        now, cpu = time.monotonic_ns(), _cpu_ns(self.pid)
        if len(self.seconds) < _MOST:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + (now - self._begun) / 1e9
        if self._cpu is not None and not self.over:
            self.wall_ns, self.cpu_ns, self.over = now - self._begun, cpu - self._cpu, True
        elif phase == self.name and self._cpu is None:
            self._cpu = cpu
        if phase in self._order:
            self._follow(phase)
        self._phase, self._begun = phase, now

    def wrong(self) -> str:
        """What cannot be of a worker that speaks for itself: ``name`` and ``then`` begin once each, in this order. The
        stack runs in the worker and can write to its pipe, but the worker's own message comes as well."""
        if self._disorder or self._heard == len(self._order):
            return self._disorder
        return f"the phase {self._order[self._heard]!r} was never told"

    def _follow(self, phase: str) -> None:
        place = self._order.index(phase)
        if place < self._heard:
            self._disorder = self._disorder or f"the phase {phase!r} was told twice"
        elif place > self._heard:
            self._disorder = (
                self._disorder or f"the phase {phase!r} was told before {self._order[self._heard]!r}"
            )
        self._heard = max(self._heard, place + 1)


def _cpu_ns(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The name, in brackets, may hold spaces; user and system time are the 14th and 15th fields.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_NS
