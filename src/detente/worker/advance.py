"""Take a reference on, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detente.stacks.protocol import Running


def advance(running: Running, placed: Sequence[Any], numbers: Sequence[int]) -> float:
    """Step through the batches of these numbers; the last loss."""
    handle = None
    for number in numbers:
        handle = running.step(placed[number])
    running.synchronise(handle)
    return running.loss(handle) if handle is not None else float("nan")
