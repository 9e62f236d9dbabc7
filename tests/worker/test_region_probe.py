"""What a step leaves behind: a schedule that begins at 0 trains, a step that trains nothing does not, and a number that
a program counts for itself is no read-back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.worker.probes import region

WEIGHTS = {"weight": np.ones(4, np.float32), "running_mean": np.zeros(2, np.float32)}


class Trained:
    """A row whose ``n``-th step has the learning rate ``rates[n]``; ``moments``: whether its optimizer keeps any."""

    def __init__(self, rates: tuple[float, ...], moments: bool, handle: Any) -> None:
        self.rates, self.moments, self.handle = rates, moments, handle

    def load(self, tensors: Any) -> None:
        self.now = {n: a.copy() for n, a in tensors.items()}
        self.taken = 0

    def step(self, batch: Any) -> Any:
        rate = self.rates[min(self.taken, len(self.rates) - 1)]
        self.now["weight"] -= np.float32(rate)
        self.now["running_mean"] += np.float32(1.0)
        self.taken += 1
        return self.handle

    def synchronise(self, *handles: Any) -> None: ...

    def loss(self, handle: Any) -> float:
        return 1.0

    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        return {}

    def parameter_names(self) -> frozenset[str]:
        return frozenset({"weight"})

    def state(self) -> dict[str, np.ndarray]:
        moment = np.full(4, 0.1 * self.taken if self.moments else 0.0)
        return {**self.now, "exp_avg:weight": moment, "step": np.array(float(self.taken))}


def told(
    *rates: float,
    moments: bool = False,
    contract: str = "train-step",
    handle: Any = (),
    weights: Any = WEIGHTS,
) -> dict[str, Any]:
    cell = Cell("ffn", "tiny", "x", CONTRACTS[contract], "cpu", "x")
    opened: Any = SimpleNamespace(
        running=Trained(rates, moments, handle),
        job=SimpleNamespace(cell=cell),
        loaded=False,
        weights=weights,
        placed=[SimpleNamespace()],
    )
    return region.probe(opened, ())["region"]


@pytest.mark.parametrize(
    ("rates", "moments"),
    [
        ((1e-3,), True),
        ((0.0, 1e-5), False),  # a warm-up
        ((0.0, 0.0, 0.0, 1e-3, 0.0), False),  # gradients of four steps gathered
        ((0.0,), True),  # a schedule that stands at 0: the optimizer works all the same
    ],
)
def test_a_step_that_trains_has_its_optimizer_inside(rates: tuple[float, ...], moments: bool) -> None:
    found = told(*rates, moments=moments)
    assert found["moved"] == 1 and found["inside"] == ["backward", "optimizer"]


def test_a_step_that_trains_nothing_has_none_whatever_it_counts() -> None:
    """Buffers move, and the count of steps does."""
    found = told(0.0)
    assert found["moved"] == 0 and found["inside"] == []


def test_what_a_step_changes_is_told_from_what_is_held() -> None:
    """A frozen backbone is held, and no step writes it: a bridge row on one was void, as it does not donate it."""
    weights = {
        **WEIGHTS,
        "frozen": np.ones(100, np.float32),
        "mask": np.array([0.0, -np.inf, np.nan], np.float32),
    }
    found = told(1e-3, weights=weights)
    moments = CONTRACTS["train-step"].moments
    assert found["moving_bytes"] == 4 * (4 * (1 + moments) + 2)
    assert found["state_bytes"] == found["moving_bytes"] + 4 * 103


def test_a_region_without_an_optimizer_is_looked_at_once() -> None:
    found = told(0.0, 1.0, contract="gradient")
    assert found["moved"] == 0 and found["inside"] == []


@pytest.mark.parametrize(
    ("handle", "read"),
    [
        (("loss", {}, 7), False),
        ({"loss": "there", "number": 7}, False),
        (("loss", {}, 7.0), True),
        (("loss", np.float32(7)), True),
        ({"out": [np.zeros(3)]}, True),
    ],
)
def test_a_number_that_a_program_counts_is_no_read_back(handle: Any, read: bool) -> None:
    assert ("read" in told(1e-3, handle=handle)["inside"]) is read
