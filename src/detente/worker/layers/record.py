"""What one side records: the values where a parameter meets an activation, as no layout of axes can change them.

Between frameworks an image is NCHW or NHWC, a head stands on an axis of its own or does not. So values are kept
sorted, or, where they are many, as some of their sorted values; beside those stand moments, which can be told of a
tensor whose pieces were recorded one by one.

How it can fail: a permutation is what this does not see. Heads that are joined in a wrong order agree here, and differ
behind the next product.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detente.worker.tensorfile import map_tensors, write_tensors

# The record of a pair's torch side in the prepared folder.
LAYERS = "layers"
# Up to as many values are kept whole, and of more as many of the sorted ones, at equal distances.
WHOLE, KEPT = 4096, 1024
# What a mask adds to scores, infinite or the largest float there is; its square would be all that a moment tells.
HUGE = 1e30


@dataclass(frozen=True)
class Values:
    """A tensor without its layout.

    ordered  float64: its values sorted, or ``KEPT`` of them, smallest and largest among them
    moments  float64, (6,): means of x, |x|, x² and x³, smallest and largest; of values under ``HUGE``
    count    elements
    """

    count: int
    ordered: np.ndarray
    moments: np.ndarray

    @property
    def rms(self) -> float:
        """Of the values under ``HUGE``; 0 of none."""
        return float(np.sqrt(self.moments[2]))


@dataclass(frozen=True)
class Boundary:
    """One operation that consumed a parameter, or that lies a few operations behind one that did.

    tensors  canonical names of what was consumed
    what     the operator: ``aten.native_layer_norm``, ``dot_general``
    shape    of the result
    values   of the result
    given    of the largest activation that it was given; None where there is none
    steps    how many operations behind the one that consumed; torch's side records those alone, with 0
    site     which equation of the program: passes of one loop share it
    through  the narrowest type of floats that its values went through, on the way from the model's inputs: ``float32``;
             empty where all was float64
    after    places in the list of those before it whose results flow into it with no boundary between; torch's alone
    """

    tensors: tuple[str, ...]
    what: str
    shape: tuple[int, ...]
    values: Values
    given: Values | None = None
    steps: int = 0
    site: int = 0
    through: str = ""
    after: tuple[int, ...] = ()


# Types of floats that round more than float64 does, narrowest first.
_NARROW = ("float8", "float16", "bfloat16", "float32")


def narrowest(types: Iterable[str]) -> str:
    """Of the names of some types, that of the narrowest floats; empty where none is narrower than float64."""
    found = [(i, t) for t in types for i, narrow in enumerate(_NARROW) if t.startswith(narrow)]
    return min(found)[1] if found else ""


def values_of(array: np.ndarray) -> Values:
    """What is kept of a real or complex array."""
    array = np.asarray(array)
    if np.iscomplexobj(array):
        array = np.stack([np.real(array), np.imag(array)])
    flat = np.sort(array.astype(np.float64), axis=None)
    finite = flat[np.abs(flat) < HUGE]
    ordered = flat if flat.size <= WHOLE else flat[np.linspace(0, flat.size - 1, KEPT).astype(np.int64)]
    if not finite.size:
        return Values(flat.size, ordered, np.zeros(6))
    squares = finite * finite
    means = finite.mean(), np.abs(finite).mean(), squares.mean(), (squares * finite).mean()
    return Values(flat.size, ordered, np.array([*means, finite[0], finite[-1]]))


def joined(pieces: Sequence[Values]) -> Values:
    """Of the tensor that these are the pieces of; its sorted values are not known, and ``ordered`` is empty."""
    counts = np.array([p.count for p in pieces], np.float64)
    moments = np.array([p.moments for p in pieces])
    means = (moments[:, :4] * counts[:, None]).sum(0) / max(counts.sum(), 1.0)
    ends = moments[:, 4].min(), moments[:, 5].max()
    return Values(int(counts.sum()), np.empty(0), np.array([*means, *ends]))


def distance(right: Values, other: Values) -> float:
    """How far ``other`` lies from ``right``, relative to its rms: infinite where they have not as many values, or where
    one is finite and the other is not."""
    if right.count != other.count:
        return float("inf")
    # Values of 1e-12 are the rounding of larger ones that cancelled.
    size = max(right.rms, 1e-12)
    scale = np.array([size, size, size**2, size**3, size, size])
    apart = np.abs(right.moments - other.moments) / np.maximum(np.abs(right.moments), scale)
    found = float(apart.max())
    if right.ordered.size and other.ordered.size:
        with np.errstate(invalid="ignore", over="ignore"):
            same = (right.ordered == other.ordered) | (np.isnan(right.ordered) & np.isnan(other.ordered))
            error = np.where(same, 0.0, right.ordered - other.ordered)
            found = max(found, float(np.sqrt(np.mean(error**2))) / size)
    return found if np.isfinite(found) else float("inf")


def write_boundaries(folder: Path, side: str, boundaries: Sequence[Boundary]) -> None:
    """``side``.safetensors, then the JSON that makes the record exist. Values that several share are written once."""
    places: dict[int, int] = {}
    kept: list[Values] = []
    for values in _all_values(boundaries):
        if id(values) not in places:
            places[id(values)] = len(kept)
            kept.append(values)
    write_tensors(
        folder / f"{side}.safetensors",
        {f"{i}/{part}": getattr(v, part) for i, v in enumerate(kept) for part in ("ordered", "moments")},
    )
    rows = [
        {
            "tensors": b.tensors,
            "what": b.what,
            "shape": b.shape,
            "values": places[id(b.values)],
            "given": None if b.given is None else places[id(b.given)],
            "steps": b.steps,
            "site": b.site,
            "through": b.through,
            "after": b.after,
        }
        for b in boundaries
    ]
    told = {"counts": [v.count for v in kept], "boundaries": rows}
    (folder / f"{side}.json").write_text(json.dumps(told))


def has_boundaries(folder: Path, side: str) -> bool:
    """Whether a side's record is there."""
    return (folder / f"{side}.json").exists()


def read_boundaries(folder: Path, side: str) -> list[Boundary]:
    """The record of one side, mapped."""
    told = json.loads((folder / f"{side}.json").read_text())
    arrays = map_tensors(folder / f"{side}.safetensors")
    kept = [Values(n, arrays[f"{i}/ordered"], arrays[f"{i}/moments"]) for i, n in enumerate(told["counts"])]
    return [
        Boundary(
            tuple(row["tensors"]),
            row["what"],
            tuple(row["shape"]),
            kept[row["values"]],
            None if row["given"] is None else kept[row["given"]],
            row["steps"],
            row["site"],
            row["through"],
            tuple(row["after"]),
        )
        for row in told["boundaries"]
    ]


def _all_values(boundaries: Sequence[Boundary]) -> Iterable[Values]:
    for boundary in boundaries:
        yield boundary.values
        if boundary.given is not None:
            yield boundary.given
