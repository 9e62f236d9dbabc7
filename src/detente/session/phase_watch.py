"""One phase of a worker by the parent's clock and the kernel's account, which no code of the worker's can move."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class PhaseWatch:
    """Measures the phase called ``name`` of the process ``pid``, from the message that it begins to the next message.

    ``wall_ns`` and ``cpu_ns`` (user and system time of all of its threads, in the kernel's ticks of 10 ms) are right
    once ``over``.
    """

    def __init__(self, pid: int, name: str) -> None:
        self.pid, self.name, self.over = pid, name, False
        self.wall_ns = self.cpu_ns = 0
        self._begun: tuple[int, int] | None = None

    def hear(self, phase: str) -> None:
        """The worker says that this phase begins."""
        now, cpu = time.monotonic_ns(), _cpu_ns(self.pid)
        if self._begun is not None and not self.over:
            self.wall_ns, self.cpu_ns, self.over = now - self._begun[0], cpu - self._begun[1], True
        elif phase == self.name:
            self._begun = now, cpu


def _cpu_ns(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The name, in brackets, may hold spaces; user and system time are the 14th and 15th fields.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_NS
