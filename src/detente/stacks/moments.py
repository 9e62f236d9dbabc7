"""What a first step leaves of the gradient in a moment that was zero, by the moment's name in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from detente.workloads.workload import OptimizerSettings

# Moment -> by what the gradient was multiplied.
FIRST: Mapping[str, Callable[[OptimizerSettings], float]] = {
    "exp_avg": lambda settings: 1 - settings.betas[0],
    "momentum_buffer": lambda settings: 1.0,
}
