"""Batches of one loss: what else is asked, and that nothing is where the losses differ."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.worker.probes import rotation
from detente.worker.reference import Trace, make_reference, reference_name, window_name, write_reference

BATCHES = [1.0, 2.0, 3.0, 4.0]


class Scaled:
    """Its loss is ``batch * w`` and its step adds the batch to w: at w = 0 every batch has the loss 0."""

    def __init__(self, stale: bool = False, until: int = 0) -> None:
        self.stale, self.until, self.taken = stale, until, 0

    def load(self, tensors: Any) -> None:
        self.w, self.taken = float(tensors["w"][0]), 0

    def step(self, batch: float) -> tuple[float, float]:
        batch = BATCHES[0] if self.stale else batch
        handle = batch * self.w, batch
        self.w += batch * (self.taken >= self.until)
        self.taken += 1
        return handle

    def loss(self, handle: tuple[float, float]) -> float:
        return handle[0]

    def outputs(self, handle: tuple[float, float]) -> dict[str, np.ndarray]:
        return {"y": np.array(handle[1])}


def told(folder: Path, running: Scaled, w: float = 0.0, contract: str = "train-step") -> dict[str, Any]:
    cell = Cell("x", "own", "jax", CONTRACTS[contract], "cpu", "jax")
    job = SimpleNamespace(cell=cell, prepared=str(folder))
    first = BATCHES[0] * w
    opened: Any = SimpleNamespace(
        job=job,
        running=running,
        weights={"w": np.array([w])},
        placed=BATCHES,
        first_loss=first,
        later_loss=first,
    )
    return rotation.probe(opened, ())["rotation"]


def test_where_losses_differ_nothing_else_is_asked(tmp_path: Path) -> None:
    assert told(tmp_path, Scaled(), w=1.0) == {"losses": BATCHES}


def test_behind_a_step_the_batches_of_one_loss_are_told_apart(tmp_path: Path) -> None:
    found = told(tmp_path, Scaled())
    assert found["losses"] == [0.0] * 4 and found["further"] == [BATCHES]


def test_of_a_warm_up_behind_more_steps(tmp_path: Path) -> None:
    found = told(tmp_path, Scaled(until=1))
    assert found["further"] == [[0.0] * 4, [2 * b for b in BATCHES]]


def test_stale_inputs_are_told_apart_by_nothing(tmp_path: Path) -> None:
    found = told(tmp_path, Scaled(stale=True))
    assert len(found["further"]) == 3 and all(len(set(look)) == 1 for look in found["further"])
    found = told(tmp_path, Scaled(stale=True), contract="gradient")
    assert len(set(found["returned"])) == 1 and "further" not in found


def test_where_nothing_trains_what_is_returned_tells(tmp_path: Path) -> None:
    assert len(set(told(tmp_path, Scaled(), contract="forward")["returned"])) == 4


@pytest.mark.parametrize("contract", ["train-step", "forward"])
def test_the_reference_says_what_it_has_of_each_batch(tmp_path: Path, contract: str) -> None:
    made = make_reference(Trace((1.0,), {}, {}, {}, {}, frozenset()))
    right = (0.0, 0.25, 0.5, 0.75)
    for stem, kept in ((window_name, right), (reference_name, ())):
        write_reference(tmp_path, stem(CONTRACTS[contract]), type(made)({}, made.entries, 3, kept))
    assert told(tmp_path, Scaled(), contract=contract)["reference"] == list(right)
