"""Fair runs: the reference's own framework, the same function at the same precision, rounded otherwise.

How far a right program may lie from the fp64 reference is measured, and not assumed: it is the largest error of some
fair runs. Of a smooth function two say it, with the rows of a batch in two orders. Of a function with kinks they do
not: the rows of a convolution are computed alone, so that two orders share every flip. There a run starts from weights
that are off in their last digit, or sums in another order: channels last, without oneDNN, on another number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from detente.records.kinks import Kinks
from detente.records.tensor_error import TensorError

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Fair:
    """One way to round. ``order`` of a batch's rows; ``seed`` of what the weights are off by in their last digit, 0 for
    nothing; ``threads``: another number of them."""

    order: int = 0
    seed: int = 0
    channels_last: bool = False
    onednn: bool = True
    threads: bool = False

    def weights(self, weights: Arrays) -> dict[str, np.ndarray]:
        return perturbed(weights, self.seed) if self.seed else dict(weights)

    def batches(self, batches: Sequence[Arrays]) -> list[dict[str, np.ndarray]] | None:
        """None where a batch has no other order of rows and nothing else makes this a run of its own."""
        plain = [dict(b) for b in batches]
        turned = [reordered(b, self.order) for b in batches] if self.order else plain
        if all(b is not None for b in turned):
            return [b for b in turned if b is not None]
        return plain if replace(self, order=0) != Fair() else None

    def judged(self, errors: tuple[TensorError, ...]) -> tuple[TensorError, ...]:
        """Those that say how far a fair run lies off. What has a row for every row of the batch, turned as the batch
        was, would be compared with another row's."""
        return (
            tuple(e for e in errors if e.kind != "output" and "batch:" not in e.name)
            if self.order
            else errors
        )


# The first is the reference's own way; each other one differs in what JAX, XLA or a tuned library may do otherwise.
# None has channels last and another number of threads at once: torch sums a channel's statistics thread by thread, and
# one thread that sums 50,000 numbers in a row made every bound wider by half for a way that nobody trains in.
EVERY_WAY = (
    Fair(),
    Fair(order=1, seed=1),
    Fair(seed=2),
    Fair(seed=3, channels_last=True),
    Fair(seed=4, onednn=False),
    Fair(order=2, threads=True),
    Fair(order=3, seed=5, channels_last=True),
    Fair(seed=6),
    Fair(order=4, seed=7),
)


def fair_runs(kinks: Kinks, many: bool = False) -> tuple[Fair, ...]:
    """The runs behind ``err_ref``: of a smooth function the rows in two orders. Of one that could not be walked nobody
    knows that it is smooth, and ``many`` steps make their own roughness: what differs in a kernel alone grows, and runs
    that share it say nothing of it."""
    return EVERY_WAY if kinks.met or kinks.reason or many else (Fair(), Fair(order=1))


def perturbed(weights: Arrays, seed: int) -> dict[str, np.ndarray]:
    """The weights with every float32 moved by one unit in its last place, up, down or not at all."""
    drawn = np.random.default_rng(seed)
    found = {}
    for name, array in weights.items():
        if array.dtype != np.float32:
            found[name] = array
            continue
        way = drawn.integers(-1, 2, array.shape, dtype=np.int8)
        toward = np.where(way > 0, np.float32(np.inf), np.float32(-np.inf))
        found[name] = np.where(way == 0, array, np.nextafter(array, toward))
    return found


def reordered(batch: Mapping[str, np.ndarray], order: int) -> dict[str, np.ndarray] | None:
    """The batch with its rows in another ``order``, 1 the reverse and each further one drawn by its number: the same
    mean loss and gradient, summed otherwise. None where the entries have no common first axis, or one row: then there
    is no other order."""
    rows = {a.shape[0] if a.ndim else 0 for a in batch.values()}
    if len(rows) != 1 or (count := max(rows)) < 2:
        return None
    places = np.arange(count)[::-1] if order == 1 else np.random.default_rng(order).permutation(count)
    return {n: np.ascontiguousarray(a[places]) for n, a in batch.items()}
