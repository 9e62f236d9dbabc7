"""Take a reference on, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detente.stacks.protocol import Running


def advance(running: Running, placed: Sequence[Any], numbers: Sequence[int], at: int = -1) -> float:
    """Step through the batches of these numbers; the loss of step ``at`` of them, the last where it is not said. NaN of
    no steps."""
    handle, looked = None, at % max(len(numbers), 1)
    kept = None
    for i, number in enumerate(numbers):
        handle = running.step(placed[number])
        kept = handle if i == looked else kept
    running.synchronise(handle)
    return running.loss(kept) if kept is not None else float("nan")
