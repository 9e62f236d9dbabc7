"""What is inside the clock, found by what a step leaves behind."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from detente.records.precision import PRECISIONS
from detente.records.sample import Sample
from detente.worker.opened import Opened

_OWN = (".py:", "hf:")
# Steps within which a training step must have moved something: a warm-up's first learning rate is 0, and an optimizer
# may gather gradients over several. As many as the shortest window is proved over.
_UNTIL = 8


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``region``. ``inside`` is found on one step from the prepared weights, and where that one trains and moves
    nothing, on those behind it:

    backward   the step returned a gradient that is not zero, or it moved a parameter
    optimizer  it moved a parameter, or, while a schedule holds the learning rate at 0, the optimizer's own tensors
    fetch      the contract has the harness itself fetch and place each batch inside the clock
    place      a placed batch holds numpy, be it inside of other objects, so the step places it, inside the clock
    read       the handle holds numbers of the host, so the step read its outputs back, inside the clock

    ``moved`` counts these parameters. ``state_bytes`` is the least that this contract trains, from the prepared file:
    parameters, buffers, and the moments of the contract's optimizer (a user's own optimizer is not known here, and
    counts for nothing). ``moving_bytes`` is what of it a step changes: a backbone that is frozen, and a mask among the
    buffers, may be held by everybody, and nobody copies them.
    """
    running, contract = opened.running, opened.job.cell.contract
    if not opened.loaded:  # the probe before this one loads them, and takes no step
        running.load(opened.weights)
    opened.loaded = False
    handle = running.step(opened.placed[0])
    running.synchronise(handle)
    # Where the clock is early the step may still be running: its parameters have not moved yet, and the next probe's
    # loading would meet it. That is a finding of its own (slope), not this one.
    opened.later_loss = running.loss(handle)
    names = running.parameter_names()
    moved, beside = _moved(opened, names)
    for _ in range(_UNTIL - 1 if contract.region == "train-step" else 0):
        if moved:
            break
        running.synchronise(running.step(opened.placed[0]))
        moved, beside = _moved(opened, names)
    inside = []
    if moved or (contract.region == "gradient" and _any_gradient(running.outputs(handle))):
        inside.append("backward")
    inside += ["optimizer"] if moved else []
    inside += (
        ["fetch", "place"]
        if contract.feed == "loader"
        else (["place"] if _keeps_numpy(opened.placed[0]) else [])
    )
    inside += ["read"] if _on_host(handle) else []
    return {
        "region": {
            "inside": inside,
            "moved": moved,
            "parameters": len(names),
            "state_bytes": _bytes(opened, names, opened.weights.keys()),
            "moving_bytes": _bytes(opened, names, names | beside),
        }
    }


def _moved(opened: Opened, names: frozenset[str]) -> tuple[int, frozenset[str]]:
    """Parameters that are not the prepared ones; where all of them are, those of which the optimizer holds a tensor
    that is not zero any more. A row that feeds its moments alone is the proof's to find: it has the reference's. And
    the names of what else is not as it was prepared."""
    state = opened.running.state()
    known = opened.weights.items()
    others = {
        n for n, a in known if n in state and not np.array_equal(state[n], a, equal_nan=a.dtype.kind == "f")
    }
    moved, beside = others & names, frozenset(others - names)
    told = {
        key.partition(":")[2] for key, array in state.items() if key not in opened.weights and np.any(array)
    }
    return len(moved or told & names), beside


def _any_gradient(found: dict[str, np.ndarray]) -> bool:
    return any(bool(np.any(a)) for a in found.values())


def _bytes(opened: Opened, names: frozenset[str], of: Collection[str]) -> int:
    contract = opened.job.cell.contract
    width = PRECISIONS[contract.precision].width
    own = any(mark in opened.job.cell.workload for mark in _OWN)
    moments = 0 if own else contract.moments
    elements = sum(a.size * (1 + moments * (n in names)) for n, a in opened.weights.items() if n in of)
    return int(elements * width)


def _keeps_numpy(value: Any, depth: int = 4) -> bool:
    """Whether a host array is reachable: in containers, and in attributes of objects that are no framework's."""
    if isinstance(value, np.ndarray):
        return value.size > 1
    if depth == 0:
        return False
    if isinstance(value, dict):
        inner: Any = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif type(value).__module__.partition(".")[0] in ("jax", "jaxlib", "torch", "torch_xla", "builtins"):
        return False
    else:
        inner = getattr(value, "__dict__", {}).values()
    return any(_keeps_numpy(one, depth - 1) for one in inner)


def _on_host(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_on_host(v) for v in value.values())
    if isinstance(value, list | tuple):
        return any(_on_host(v) for v in value)
    # What a device computes comes back as a float or as numpy; a Python int is what a program counts for itself (the
    # number of a step beside its loss), and no read-back.
    return isinstance(value, np.ndarray | np.generic | float)
