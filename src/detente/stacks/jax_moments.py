"""What optax keeps beside the parameters: read under torch's names, and restored from them.

What torch has no name for (the gradients that ``optax.MultiSteps`` gathers, and how many) goes by optax's own, of a
model that JAX alone defines: there the reference is JAX's, and takes such a state over. Beside a torch side nobody
could.

How it can fail: two parts of one chain that keep a field of one name (two ``scale_by_adam``) have one entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from detente.stacks.protocol import Arrays
from detente.workloads.weights import WeightRule, to_canonical, to_framework

# optax's names of what torch's optimizers keep.
MOMENTS = {"mu": "exp_avg", "nu": "exp_avg_sq", "trace": "momentum_buffer"}
# Behind a field that is one number.
_ONE = ":count"


def read_moments(running: Any) -> dict[str, np.ndarray]:
    """``moment:parameter`` -> array, of a ``JaxRunning``, and ``step``. What has no name (an empty state) is passed
    by."""
    rules, found = _rules(running), {}
    for part in _named_parts(running.opt_state):
        for field in part._fields:
            value, key = getattr(part, field), _key(running, field)
            if field == "count":
                found["step"] = running._to_host(value).astype(np.float64)
            elif key and (field in MOMENTS or _like_parameters(running, value)):
                canonical = to_canonical(rules, running._flat(value, read=running._widened))
                found |= {f"{key}:{name}": array for name, array in canonical.items()}
            elif key and _is_number(value):
                found[key + _ONE] = running._to_host(value).astype(np.float64)
    return found


def restored(running: Any, part: Any, state: Arrays) -> Any:
    """A part of the optimizer's state out of a handed-out one; a moment that this lacks is zero."""
    if not hasattr(part, "_fields"):
        whole = isinstance(part, tuple | list)
        return type(part)(restored(running, p, state) for p in part) if whole else part
    rules, values = _rules(running), {}
    for field in part._fields:
        value, key = getattr(part, field), _key(running, field)
        values[field] = restored(running, value, state)
        if field == "count" and "step" in state:
            values[field] = _number(running, state["step"], value)
        elif key and (field in MOMENTS or _like_parameters(running, value)):
            kept = {r.name: state.get(f"{key}:{r.name}") for r in rules}
            given = {n: np.zeros_like(state[n]) if a is None else a for n, a in kept.items()}
            leaves = to_framework(rules, given)
            values[field] = running.parts.filled(
                value, lambda path, old, leaves=leaves: running._put(leaves[path].astype(old.dtype))
            )
        elif key and _is_number(value):
            values[field] = _number(running, state.get(key + _ONE, 0), value)
    return type(part)(**values)


def _rules(running: Any) -> list[WeightRule]:
    names = running.parameter_names()
    return [r for r in running.rules if r.name in names]


def _key(running: Any, field: str) -> str:
    """Under which name a field is handed out; empty where nobody would know it."""
    alone = "torch" not in running.workload.definitions
    return MOMENTS.get(field, field if alone else "")


def _like_parameters(running: Any, tree: Any) -> bool:
    """Whether a tree has an array for each parameter, of its shape."""
    shapes = running.jax.tree.map(np.shape, running.params)
    return running.jax.tree.map(np.shape, tree) == shapes


def _is_number(value: Any) -> bool:
    return hasattr(value, "dtype") and np.shape(value) == ()


def _number(running: Any, value: Any, like: Any) -> Any:
    return running._put(np.asarray(value).astype(like.dtype))


def _named_parts(state: Any) -> Iterator[Any]:
    """The named tuples of an optax state, nested ones too."""
    if hasattr(state, "_fields") and state._fields:
        yield state
    if isinstance(state, tuple | list):
        for part in state:
            yield from _named_parts(part)
