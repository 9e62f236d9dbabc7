"""The reference itself: torch-eager, with the optimizer's plain loop, at one precision."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from detente.records.contract import Contract
from detente.stacks.torch_eager import TorchEagerDefault, TorchRunning
from detente.stacks.torch_undrawn import undrawn
from detente.workloads.workload import Size, Workload


@contextmanager
def reference_run(
    workload: Workload, size: Size, contract: Contract, precision: str, device: str, threads: int
) -> Iterator[TorchRunning]:
    """A workload at ``precision``, gone from memory when it is left: an fp64 run holds a model four times over."""
    stack = TorchEagerDefault()
    stack.start(device, precision, threads)
    with undrawn():  # ``load`` overwrites what would be drawn, and in float64 drawing takes seconds
        held = [stack.build(workload, size, contract.at(precision))]
    try:
        yield held[0]
    finally:
        held.clear()
        gc.collect()
