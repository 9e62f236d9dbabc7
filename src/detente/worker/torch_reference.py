"""The reference itself: torch-eager, with the optimizer's plain loop, at one precision, advanced step by step."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

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


def reordered(batch: Mapping[str, np.ndarray], order: int) -> dict[str, np.ndarray] | None:
    """The batch with its rows in another ``order``, 1 the reverse and each further one drawn by its number: the same
    mean loss and gradient, summed otherwise. None where the entries have no common first axis, or one row: then there
    is no other order."""
    rows = {a.shape[0] if a.ndim else 0 for a in batch.values()}
    if len(rows) != 1 or (count := max(rows)) < 2:
        return None
    places = np.arange(count)[::-1] if order == 1 else np.random.default_rng(order).permutation(count)
    return {n: np.ascontiguousarray(a[places]) for n, a in batch.items()}


def advance(running: TorchRunning, placed: Sequence[Any], numbers: Sequence[int]) -> float:
    """Step through the batches of these numbers; the last loss."""
    handle = None
    for number in numbers:
        handle = running.step(placed[number])
    running.synchronise(handle)
    return running.loss(handle) if handle is not None else float("nan")
