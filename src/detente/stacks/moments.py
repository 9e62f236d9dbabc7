"""What torch's optimizers keep, by their names of it: moments by parameter, and counts of steps; and what a first step
leaves of the gradient in a moment that was zero."""

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

# Numbers that torch's optimizers keep beside a parameter, and that are no moment of it: told by name where every
# parameter is a number itself.
_COUNTS = frozenset({"step", "eta", "mu", "mu_product"})


def by_name(
    kept: Mapping[str, Mapping[str, np.ndarray]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """``moment:parameter`` -> array, out of what is kept of each parameter by torch's key; a count of steps as one
    under its key, where all parameters agree. ``shapes`` are the parameters'. A parameter without axes (a temperature)
    has moments without axes: what its key is of the others, it is of it."""
    moments = {k for n, own in kept.items() for k, a in own.items() if shapes[n] and np.shape(a) == shapes[n]}
    numbers = {k for n, own in kept.items() for k, a in own.items() if shapes[n] and np.shape(a) == ()}
    found: dict[str, np.ndarray] = {}
    counts: dict[str, dict[str, np.ndarray]] = {}
    for name, own in kept.items():
        for key, array in own.items():
            if np.shape(array) or key in moments or not (key in numbers or key in _COUNTS):
                found[f"{key}:{name}"] = array
            else:
                counts.setdefault(key, {})[name] = np.array(float(array))
    for key, told in counts.items():
        # Of a parameter that no gradient reaches torch keeps nothing, and others a count of no steps.
        values = {name: value for name, value in told.items() if value} or told
        if len({float(value) for value in values.values()}) == 1:
            found[key] = next(iter(values.values()))
        else:
            found |= {f"{key}:{name}": value for name, value in values.items()}
    return found


def is_count(key: str) -> bool:
    """Whether torch keeps a number under this key, of whatever parameter."""
    return key in _COUNTS


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
