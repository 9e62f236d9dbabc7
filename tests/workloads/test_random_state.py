"""A Flax module may hold keys of random numbers: they move with every step and begin anew where weights are loaded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detente.records.contract import CONTRACTS
from detente.stacks.catalogue import find_entry, make_stack
from detente.workloads.catalogue import find_workload


def test_keys_of_a_module_move_and_begin_anew() -> None:
    plain = find_workload("ffn")
    workload = replace(plain, definitions={"flax": "tests.workloads.flax_with_random_state"})
    size = plain.sizes["tiny"]
    stack = make_stack(find_entry("jax"))
    stack.start("cpu", "fp32", 1)
    running = stack.build(workload, size, CONTRACTS["train-step"])
    batch = running.place(plain.batch(size, np.random.default_rng(0)))
    weights = running.tensors()

    def losses() -> list[float]:
        running.load(weights)
        return [running.loss(running.step(batch)) for _ in range(3)]

    first = losses()
    assert losses() == first
    # The same weights and batch, another draw: the keys moved.
    fair = stack.build(plain, size, CONTRACTS["train-step"])
    fair.load(weights)
    assert abs(fair.loss(fair.step(batch)) - first[0]) > 1e-3 * first[0]
    moved = [running.loss(running.step(batch)) for _ in range(2)]
    assert len({*first, *moved}) == 5
    assert running.state().keys() == fair.state().keys()
