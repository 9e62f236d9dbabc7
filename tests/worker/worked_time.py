"""A clock that goes on where a made-up stack works, and nowhere else: what the harness reads, no neighbour moves."""

from __future__ import annotations

import pytest

from detente.worker import buffers, clock, placing, window


class Worked:
    """Nanoseconds of work so far."""

    now = 0

    def work(self, nanoseconds: float) -> None:
        self.now += round(nanoseconds)


def read_work(monkeypatch: pytest.MonkeyPatch, worked: Worked) -> None:
    """Every reading of a window's is ``worked`` from now on."""
    for module in (window, placing):
        monkeypatch.setattr(module, "readings", lambda: (worked.now, worked.now))
    for name in ("perf_counter_ns", "process_time_ns"):
        monkeypatch.setattr(clock, name, lambda: worked.now)
    monkeypatch.setattr(buffers, "perf_counter_ns", lambda: worked.now)
