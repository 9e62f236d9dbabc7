"""`load` puts a torch row back to where it began, whatever its optimizer keeps: what follows is the first run again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from detente.records.contract import CONTRACTS
from detente.stacks.torch_eager import TorchEager
from detente.workloads.catalogue import find_size, find_workload

OPTIMIZERS = (
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adagrad",
    "ASGD",
    "Rprop",
    "RMSprop",
    "Adadelta",
    "Adamax",
    "SGD",
)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("workload", ["ffn", "resnet"])
def test_steps_behind_a_second_load_are_the_first_ones(name: str, workload: str) -> None:
    stack = TorchEager()
    stack.start("cpu", "fp32", 1)
    found = find_workload(workload)
    size = find_size(found, "tiny")
    running = stack.build(found, size, CONTRACTS["train-step"])
    settings = {"initial_accumulator_value": 0.25} if name == "Adagrad" else {}
    running.optimizer = getattr(torch.optim, name)(running.module.parameters(), lr=1e-2, **settings)
    weights = running.tensors()
    batch = running.place(found.batch(size, np.random.default_rng(3)))

    def run() -> list[float]:
        running.load(weights)
        return [running.loss(running.step(batch)) for _ in range(4)]

    assert run() == run()
    counts = [b for n, b in running.module.named_buffers() if n.endswith("num_batches_tracked")]
    running.load(weights)
    assert all(int(c) == 0 for c in counts) and (workload == "ffn" or counts)
