"""The first three steps, timed, and what they leave behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detente.stacks.protocol import Running
from detente.worker.clock import timed_step
from detente.worker.events import Events
from detente.worker.reference import Trace


@dataclass(frozen=True)
class ThreeSteps:
    """Seconds and losses of the steps, and the trace that is compared with the reference."""

    seconds: tuple[float, float, float]
    trace: Trace


def three_steps(
    running: Running, placed: list[Any], weights: Mapping[str, np.ndarray], region: str, events: Events
) -> ThreeSteps:
    """Run steps on batches 0, 1, 2 from the loaded weights. The first handle is kept, so that what a forward or a
    gradient program returned is compared itself, not a second program's copy of it."""
    seconds, losses, first = [], [], None
    for i, phase in enumerate(("first", "second", "third")):
        events.phase(phase)
        took, loss, handle = timed_step(running, placed[i % len(placed)])
        seconds.append(took)
        losses.append(loss)
        first = handle if first is None else first
    returned = running.outputs(first) if region != "train-step" else {}
    trace = Trace(
        losses=tuple(losses),
        outputs=returned if region == "forward" else {},
        gradients=returned if region == "gradient" else {},
        before=weights,
        after=running.tensors() if region != "forward" else {},
        parameters=running.parameter_names() if region == "train-step" else frozenset(),
    )
    if region == "gradient":
        # Only the buffers move; parameters must not, and a zero change is compared like any other.
        trace = Trace(trace.losses, {}, trace.gradients, weights, trace.after, running.parameter_names())
    return ThreeSteps((seconds[0], seconds[1], seconds[2]), trace)
