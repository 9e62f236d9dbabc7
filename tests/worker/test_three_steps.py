"""The first step's seconds are a user's: they begin with the batch on the host."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from detente.worker.events import Events
from detente.worker.three_steps import three_steps

BATCHES = [{"x": np.full(2, i, np.float32)} for i in range(4)]
SLOW_S = 0.05


class CompilesWhilePlacing:
    """Takes its time at the first batch that it is given."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def place(self, batch: Any) -> Any:
        if not self.done:
            time.sleep(SLOW_S)
        self.done.append(f"place {batch['x'][0]:.0f}")
        return batch

    def step(self, batch: Any) -> Any:
        self.done.append(f"step {batch['x'][0]:.0f}")
        return batch

    def loss(self, handle: Any) -> float:
        return float(handle["x"][0])

    def synchronise(self, *handles: Any) -> None: ...


def steps(placed: list[Any], batches: list[Any]) -> tuple[Any, list[str]]:
    running: Any = CompilesWhilePlacing()
    return three_steps(running, placed, "train-step", Events(os.dup(2)), batches), running.done


def test_placing_the_first_batch_is_the_first_steps_and_no_other_is_placed_before() -> None:
    placed: list[Any] = []
    found, done = steps(placed, BATCHES)
    assert found.seconds[0] >= SLOW_S > max(found.seconds[1:])
    assert done == ["place 0", "step 0", "place 1", "place 2", "place 3", "step 1", "step 2"]
    assert placed == BATCHES and found.losses == (0.0, 1.0, 2.0)


def test_what_is_placed_already_is_not_placed_again() -> None:
    found, done = steps(list(BATCHES[:1]), [])
    assert done == ["step 0"] * 3 and max(found.seconds) < SLOW_S
