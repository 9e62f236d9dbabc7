"""How many cores were busy: what is booked late is nobody's crime, and a helper is seen."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from detente.records.sample import Sample
from detente.worker.probes import threads
from detente.worker.process_state import take_state

MS = 1_000_000


def busy(*samples: tuple[float, float]) -> float:
    """Of samples of (wall ms, processor ms) on two cores."""
    opened: Any = SimpleNamespace(
        began=take_state(),
        environment={"before": {"DETENTE_AFFINITY": "0,1"}},
        window=None,
        job=SimpleNamespace(threads=2),
    )
    found = tuple(Sample(round(wall * MS), 1, round(cpu * MS)) for wall, cpu in samples)
    return threads.probe(opened, found)["threads"]["busy"]


def test_what_a_thread_did_before_is_booked_in_a_short_window() -> None:
    """The first sample of the row that was void: 7.8 times its length."""
    assert busy((0.52, 4.02), *[(0.52, 0.52)] * 4) < 2


@pytest.mark.parametrize(("wall", "cores"), [(50, 3.0), (200, 2.5), (1000, 2.3)])
def test_more_cores_than_two_are_seen(wall: float, cores: float) -> None:
    assert busy((wall, wall * cores)) > 2.2


def test_two_busy_cores_are_two() -> None:
    assert 1.97 < busy(*[(50, 100)] * 20) <= 2


@pytest.mark.parametrize("said", ["²", "two", ""])
def test_what_a_row_writes_into_the_environment_does_not_stop_the_probe(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert "OMP_NUM_THREADS" not in threads._read_back()


def test_what_a_helper_computed_in_the_window_is_told_apart() -> None:
    opened: Any = SimpleNamespace(
        began=take_state(),
        environment={"before": {"DETENTE_AFFINITY": "0,1"}},
        window=None,
        job=SimpleNamespace(threads=2),
    )

    def helped(command: str) -> float:
        before = take_state()
        subprocess.run([sys.executable, "-c", command], check=True)
        opened.window = before, take_state()
        return threads.probe(opened, ())["threads"]["helped_s"]

    busy = "import time\nwhile time.process_time() < 0.3: pass"
    assert helped(busy) >= 0.25
    sum(i for i in range(3_000_000))  # one's own is none
    opened.window = take_state(), take_state()
    assert threads.probe(opened, ())["threads"]["helped_s"] == 0.0
