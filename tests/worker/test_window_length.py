"""How long a sample is, is not the stack's word: where three steps and a calibration said too much, more are queued."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detente.records.job import Sampling
from detente.worker.window import Rotation, Window
from tests.worker.worked_time import Worked, read_work

CLOCK = Worked()
SAMPLING = Sampling(block_s=0.004, samples=12, least=5, seconds=0.5)


@pytest.fixture(autouse=True)
def worked(monkeypatch: pytest.MonkeyPatch) -> None:
    read_work(monkeypatch, CLOCK)


class Steps:
    """A step takes ``step_s``, while it is waited for or (``late``) while its loss is read."""

    def __init__(self, step_s: float, late: bool = False) -> None:
        self.step_s, self.late, self.waiting = step_s, late, 0

    def step(self, batch: Any) -> Any:
        self.waiting += 1
        return batch

    def _work(self) -> None:
        CLOCK.work(1e9 * self.step_s * self.waiting)
        self.waiting = 0

    def synchronise(self, *handles: Any) -> None:
        if not self.late:
            self._work()

    def loss(self, handle: Any) -> float:
        self._work()
        return 1.0

    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        return {"y": np.ones(2)}

    def state(self) -> dict[str, np.ndarray]:
        self._work()
        return {"x": np.ones(3)}


def window(running: Any, moves: bool, queued: int = 1) -> Any:
    """Of a step that was told to last as long as a sample."""
    feed = Rotation([0, 1, 2, 3])
    taking = Window(running, feed, queued, 0.02, SAMPLING, (lambda: None, lambda: None))
    if not moves:
        return taking.of_outputs([])
    taking.make_room(hold=True)
    return taking.of_state(3)


@pytest.mark.parametrize("moves", [True, False])
def test_samples_become_as_long_as_they_were_planned(moves: bool) -> None:
    taken = window(Steps(1e-4), moves)
    assert taken.samples[0].steps == 1 < min(s.steps for s in taken.samples[2:])
    assert all(s.wall_ns >= SAMPLING.block_s * 1e9 / 2 for s in taken.samples[3:])
    for stretch in taken.stretches:
        assert stretch.steps == len(stretch.batches)


@pytest.mark.parametrize("moves", [True, False])
def test_what_lasts_is_left_as_it_is(moves: bool) -> None:
    taken = window(Steps(0.005), moves)
    assert {s.steps for s in taken.samples} == {1}


def test_a_stack_that_does_not_wait_is_not_given_ever_more() -> None:
    taken = window(Steps(0.005, late=True), moves=True)
    assert {s.steps for s in taken.samples} == {1}
