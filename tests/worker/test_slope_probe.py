"""What the slope probe reads of steps that are long: the window's samples are its waits, and few steps are added."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from detente.records.sample import Sample
from detente.worker.probes import slope

STEP_S = 1.2


class _Device:
    """A device with a clock of its own: ``synchronise`` waits, or is said to have waited; ``loss`` always does."""

    def __init__(self, step_s: float, waits: bool) -> None:
        self.time, self.busy_until, self.step_s, self.waits, self.steps = 0.0, 0.0, step_s, waits, 0

    def now(self) -> float:
        return self.time

    def step(self, batch: Any) -> float:
        self.steps += 1
        self.time += 1e-6
        self.busy_until = max(self.busy_until, self.time) + self.step_s
        return self.busy_until

    def synchronise(self, *handles: float) -> None:
        if self.waits:
            self.time = max(self.time, *handles)

    def loss(self, handle: float) -> float:
        self.time = max(self.time, handle)
        return 0.0

    def samples(self) -> tuple[Sample, ...]:
        """As the window took them: honest or early."""
        seconds = self.step_s if self.waits else 1e-5
        return tuple(Sample(round(seconds * f * 1e9)) for f in (1.0, 1.1, 1.05, 1.02, 1.2))


def look(device: _Device, monkeypatch: pytest.MonkeyPatch, samples: tuple[Sample, ...]) -> dict[str, Any]:
    monkeypatch.setattr(slope, "now", device.now)
    monkeypatch.setattr(slope.time, "sleep", lambda s: setattr(device, "time", device.time + s))
    return slope.probe(SimpleNamespace(running=device, placed=[0, 1]), samples)["slope"]


def test_long_steps_are_held_against_the_samples_that_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(STEP_S, waits=True)
    found = look(device, monkeypatch, device.samples())
    assert found["k"] == 1 and device.steps == 4
    assert found["waits"] == pytest.approx([STEP_S, 1.2 * STEP_S])
    assert found["t_k"] == pytest.approx(STEP_S) and found["t_2k"] == pytest.approx(2 * STEP_S, rel=1e-3)
    assert len(found["reads"]) == 2 and found["read_t_k"] == pytest.approx(STEP_S, rel=1e-3)


def test_long_steps_whose_samples_end_early_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(STEP_S, waits=False)
    found = look(device, monkeypatch, device.samples())
    assert max(found["waits"]) < 1e-4 and found["read_t_k"] == pytest.approx(STEP_S, rel=1e-3)


@pytest.mark.long
def test_what_looks_odd_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that went faster behind the window, or slower, and a clock that is early in both looks."""
    for factor in (0.5, 1.6):
        device = _Device(STEP_S * factor, waits=True)
        found = look(device, monkeypatch, _Device(STEP_S, waits=True).samples())
        assert found["again"]["waits"] == pytest.approx([STEP_S * factor] * 2, rel=1e-3)
        assert found["again"]["reads"] == pytest.approx([STEP_S * factor] * 2, rel=1e-3)
        assert found["again"]["doubles"] == pytest.approx([2 * STEP_S * factor] * 2, rel=1e-3)
    early = _Device(STEP_S, waits=False)
    found = look(early, monkeypatch, early.samples())
    assert max(found["again"]["waits"]) < 1e-4 and min(found["again"]["reads"]) > 1
    fair = _Device(STEP_S, waits=True)
    assert "again" not in look(fair, monkeypatch, fair.samples())


def test_without_samples_of_single_steps_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(STEP_S, waits=True)
    found = look(device, monkeypatch, (Sample(round(8 * STEP_S * 1e9), 8),))
    assert found["waits"] == pytest.approx([STEP_S, STEP_S], rel=1e-3)


def test_short_steps_are_read_in_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _Device(0.01, waits=True)
    found = look(device, monkeypatch, device.samples())
    assert found["k"] == 9 and len(found["waits"]) == 3 and len(found["doubles"]) == 2
