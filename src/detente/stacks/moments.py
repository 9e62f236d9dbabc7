"""What a first step leaves of the gradient in a moment that was zero, by the moment's name in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from detente.stacks.protocol import Unavailable
from detente.workloads.workload import OptimizerSettings

# Moment -> by what the gradient was multiplied.
FIRST: Mapping[str, Callable[[OptimizerSettings], float]] = {
    "exp_avg": lambda settings: 1 - settings.betas[0],
    "momentum_buffer": lambda settings: 1.0,
}


def gradients_in(
    state: Mapping[str, Any], settings: OptimizerSettings, read: Callable[[Any], np.ndarray]
) -> dict[str, np.ndarray]:
    """The gradients of a first step, by parameter, from the ``moment:parameter`` that it left. Raises Unavailable where
    the optimizer keeps none that they could be read from."""
    for moment, share in FIRST.items():
        names = [n for n in state if n.startswith(f"{moment}:")]
        if names:
            by = share(settings)
            return {n.partition(":")[2]: read(state[n]) / by for n in names}
    raise Unavailable("the program's optimizer keeps nothing that its gradients could be read from")
