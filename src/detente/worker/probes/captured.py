"""Whether a program that holds many constants holds its weights: other weights are loaded, and must change what it
says.

A table of positions is a constant, and no weight. What tells the two apart is not their size: weights that stand in a
program are not read, and other ones change nothing, or it is compiled anew for them.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from detente.records.captured import constants_allowed
from detente.records.sample import Sample
from detente.worker.clock import now
from detente.worker.opened import Opened
from detente.workloads.narrow import BFLOAT16, is_narrow

# What is not asked within so many seconds counts as not read.
_SECONDS = 20.0
# A tensor moves by up to this share of itself: enough for a loss of three digits, and no variance becomes negative.
_BY = 0.5


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``captured``, only of a row whose program holds more constants than ``constants_allowed``. Each tensor of the
    weights is replaced by another one, the largest first, until what is left is less than may be captured.
    ``unread_bytes`` have those that changed neither loss nor outputs; ``compiled``: compilations meanwhile."""
    counted = opened.counted
    sizes = {n: a.nbytes for n, a in opened.weights.items() if _floats(a)}
    allowed = constants_allowed(sum(a.nbytes for a in opened.weights.values()))
    if counted is None or counted["constants_bytes"] <= allowed:
        return {}
    running, events = opened.running, opened.running.compiled().events
    # From weights of no special values: behind a head of zeros nothing changes anything.
    base = {n: _moved(a, 0) for n, a in opened.weights.items()}
    right, start = _told(opened, base), now()
    left, unread = sum(sizes.values()), 0
    for number, name in enumerate(sorted(sizes, key=lambda n: -sizes[n]), 1):
        if left <= allowed or now() - start > _SECONDS:
            break
        left -= sizes[name]
        if _told(opened, {**base, name: _moved(opened.weights[name], number)}) == right:
            unread += sizes[name]
    running.load(opened.weights)
    unread += left if left > allowed else 0
    return {"captured": {"unread_bytes": unread, "compiled": running.compiled().events - events}}


def _told(opened: Opened, weights: dict[str, np.ndarray]) -> tuple[float, str]:
    """Loss and outputs of a step on the first batch from these weights."""
    running = opened.running
    running.load(weights)
    handle = running.step(opened.placed[0])
    loss, digest = running.loss(handle), hashlib.sha256()
    if not math.isfinite(loss):
        raise RuntimeError(f"from weights that are off by half the loss is {loss}: nothing can be told by it")
    for name, array in sorted(running.outputs(handle).items()):
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(array).tobytes())
    return loss, digest.hexdigest()


def _floats(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or is_narrow(array)


def _moved(array: np.ndarray, seed: int) -> np.ndarray:
    """Other numbers of the same kind and size; what is no floating point stays."""
    drawn = np.random.default_rng(seed)
    if is_narrow(array):
        bits = array["bfloat16"]
        # The last bits of each, and a hundredth where it is nothing.
        other = np.where(bits & 0x7FFF, bits ^ drawn.integers(1, 64, bits.shape, "u2"), 0x3C23)
        return other.astype("<u2").view(BFLOAT16)
    if array.dtype.kind != "f":
        return array
    by = drawn.uniform(-_BY, _BY, array.shape)
    return (array * (1 + by) + (0.0 if np.any(array) else 0.1) * by).astype(array.dtype)
