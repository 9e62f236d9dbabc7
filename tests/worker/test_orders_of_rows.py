"""The reference's own error comes from runs that sum the same rows in other orders."""

from __future__ import annotations

import numpy as np

from detente.worker.torch_reference import in_orders

BATCH = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6)}


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
