"""The reference's own error comes from runs that sum the same rows in other orders."""

from __future__ import annotations

import numpy as np

from detente.records.kinks import Kinks
from detente.records.tensor_error import TensorError
from detente.worker.fair import EVERY_WAY, Fair, fair_runs, perturbed

BATCH = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6)}


def in_orders(batches, count):
    found = (Fair(order=i).batches(batches) for i in range(count))
    return [turned for turned in found if turned is not None]


def test_each_order_holds_every_row_once_and_entries_stay_together() -> None:
    orders = list(in_orders([BATCH, BATCH], 6))
    assert len(orders) == 6
    for first, second in orders:
        np.testing.assert_array_equal(first["y"], second["y"])
        np.testing.assert_array_equal(first["x"][:, 0] / 2, first["y"])
        assert sorted(first["y"]) == list(range(6))
    assert len({tuple(first["y"]) for first, _ in orders}) == 6


def test_a_replay_draws_the_same_orders_again() -> None:
    once, again = (list(in_orders([BATCH], 6)) for _ in range(2))
    for (a,), (b,) in zip(once, again, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])


def test_one_row_has_no_other_order() -> None:
    assert len(list(in_orders([{"x": np.zeros((1, 3))}], 6))) == 1
    assert len(list(in_orders([{"x": np.zeros((3, 3)), "scale": np.zeros(())}], 6))) == 1


def test_a_function_with_kinks_is_run_in_many_ways_and_one_that_could_not_be_walked_too() -> None:
    assert len(fair_runs(Kinks({"relu": 1}))) >= 9 and fair_runs(Kinks(reason="no")) == EVERY_WAY
    # As is a stretch of many steps, which makes its own roughness.
    assert fair_runs(Kinks(), many=True) == EVERY_WAY and len(fair_runs(Kinks())) == 2
    # Where the rows have no other order, what else differs still makes a run.
    assert sum(fair.batches([{"x": np.zeros((1, 3))}]) is not None for fair in EVERY_WAY) == len(EVERY_WAY)


def test_what_was_turned_with_the_batch_is_held_against_no_other_row() -> None:
    errors = tuple(
        TensorError(kind, name, 1.0, 0.0, 1.0, 1)  # type: ignore[arg-type]
        for kind, name in [
            ("output", "0:logits"),
            ("gradient", "0:batch:x"),
            ("gradient", "w"),
            ("loss", "1"),
        ]
    )
    assert [e.name for e in Fair(order=1).judged(errors)] == ["w", "1"]
    assert Fair(seed=1).judged(errors) == errors


def test_weights_are_off_by_one_unit_in_the_last_place_at_most() -> None:
    weights = {"w": np.linspace(-2, 2, 1001, dtype=np.float32), "n": np.arange(3)}
    off = perturbed(weights, 1)
    away = np.abs(off["w"] - weights["w"])
    assert np.all(away <= np.spacing(np.abs(weights["w"])) * 1.01) and 0.5 < np.mean(away > 0) < 0.8
    assert off["n"] is weights["n"] and off["w"].dtype == np.float32
