"""The entries of a batch that the torch side of a pair made, as the JAX side takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from detente.records.fault import UsageFault

# Pictures, channels first in torch, are mostly channels last in JAX: rank -> permutation.
_CHANNELS_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


def arranged(
    batch: Mapping[str, np.ndarray], names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], target: str
) -> dict[str, np.ndarray]:
    """The batch under the names and in the layout that the other side's own batch has.

    batch   what travels, by the torch side's names
    names   entries of the other side's batch that are arrays, in order; by name where all agree, else by position
    shapes  those of the other side's batch; a first axis of another extent is another number of rows

    Raises UsageFault where the entries do not fit each other.
    """
    named = set(names) == set(batch)
    if not named and (len(names) != len(batch) or not _nameless(batch, names)):
        raise UsageFault(
            f"the batches of the pair differ: {target} has {_told(shapes)}, and the torch side "
            f"{_told({n: a.shape for n, a in batch.items()})}",
            "give both batches the same entries, under the same names or as sequences in the same order",
        )
    pairs = [(n, n) for n in names] if named else list(zip(names, batch, strict=True))
    return {mine: _laid_out(mine, batch[theirs], shapes[mine], target) for mine, theirs in pairs}


def _nameless(batch: Mapping[str, np.ndarray], names: Sequence[str]) -> bool:
    """Whether one of the two is a sequence, whose entries have numbers for names."""
    return all(n.isdigit() for n in batch) or all(n.isdigit() for n in names)


def _laid_out(name: str, array: np.ndarray, shape: tuple[int, ...], target: str) -> np.ndarray:
    if array.shape[1:] == shape[1:] and array.ndim == len(shape):
        return array
    order = _CHANNELS_LAST.get(array.ndim)
    if order is not None and tuple(array.shape[i] for i in order)[1:] == shape[1:]:
        return np.ascontiguousarray(array.transpose(order))
    raise UsageFault(
        f"the entry {name!r} of the batch has {shape} in {target} and {array.shape} on the torch side",
        "both sides must be given the same batch; pictures may be channels first in torch and channels last in JAX",
    )


def _told(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{n} {s}" for n, s in shapes.items())
