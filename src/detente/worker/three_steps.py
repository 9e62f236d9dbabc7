"""The first three steps, timed, and what they leave behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detente.stacks.protocol import Running
from detente.worker.clock import now, timed_step
from detente.worker.events import Events
from detente.worker.reference import Trace


@dataclass(frozen=True)
class ThreeSteps:
    """Seconds and losses of the steps, and what the first of them returned besides its loss."""

    seconds: tuple[float, float, float]
    losses: tuple[float, ...]
    returned: Mapping[str, np.ndarray]

    def trace(
        self, running: Running, weights: Mapping[str, np.ndarray], region: str, *, moved: bool
    ) -> Trace:
        """What is compared with the reference of three steps. ``moved``: the tensors too, as they are now: only right
        behind the third step."""
        # Of a gradient region only the buffers move; parameters must not, and a zero change is compared like any other.
        return Trace(
            losses=self.losses,
            outputs=self.returned if region == "forward" else {},
            gradients=self.returned if region == "gradient" else {},
            before=weights,
            after=running.tensors() if moved and region != "forward" else {},
            parameters=running.parameter_names() if region != "forward" else frozenset(),
        )


def three_steps(
    running: Running,
    placed: list[Any],
    region: str,
    events: Events,
    batches: Sequence[Mapping[str, np.ndarray]] = (),
) -> ThreeSteps:
    """Run steps on batches 0, 1, 2 from the loaded weights. The first handle is kept, so that what a forward or a
    gradient program returned is compared itself, not a second program's copy of it.

    ``batches`` are still to be placed: the first within the seconds of the first step, because a user's first step
    begins so, and a program may be compiled there as well; the others behind it, or that would be done in theirs."""
    seconds, losses, first = [], [], None
    for i, phase in enumerate(("first", "second", "third")):
        events.phase(phase)
        start = now()
        placed += [running.place(batch) for batch in batches[:1]]
        before = now() - start
        took, loss, handle = timed_step(running, placed[i % len(placed)])
        placed += [running.place(batch) for batch in batches[1:]]
        batches = ()
        seconds.append(before + took)
        losses.append(loss)
        first = handle if first is None else first
    returned = running.outputs(first) if region != "train-step" else {}
    return ThreeSteps((seconds[0], seconds[1], seconds[2]), tuple(losses), returned)
