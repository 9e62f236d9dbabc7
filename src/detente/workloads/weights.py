"""The map between canonical (torch) tensors and another framework's, rule by rule, both ways."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Layout:
    """A change of layout and its inverse."""

    there: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], np.ndarray]


LAYOUTS: dict[str, Layout] = {
    "same": Layout(lambda a: a, lambda a: a),
    # torch.nn.Linear keeps (out, in); Flax kernels are (in, out).
    "transposed": Layout(lambda a: np.swapaxes(a, 0, 1), lambda a: np.swapaxes(a, 0, 1)),
    # torch convolutions are (out, in, h, w); Flax kernels are (h, w, in, out).
    "convolution": Layout(lambda a: np.transpose(a, (2, 3, 1, 0)), lambda a: np.transpose(a, (3, 2, 0, 1))),
}


@dataclass(frozen=True)
class WeightRule:
    """One canonical tensor and where it lives in the other framework.

    name     canonical name (torch's ``state_dict``)
    path     path of the leaf in the other framework's state
    layout   a key of LAYOUTS
    layer    index on a leading stacked axis, or None for a leaf of its own
    """

    name: str
    path: Path
    layout: str = "same"
    layer: int | None = None


def to_framework(rules: Iterable[WeightRule], canonical: Mapping[str, np.ndarray]) -> dict[Path, np.ndarray]:
    """Canonical arrays as the other framework's leaves. Raises KeyError naming a canonical tensor that is absent."""
    single: dict[Path, np.ndarray] = {}
    stacked: dict[Path, dict[int, np.ndarray]] = {}
    for rule in rules:
        if rule.name not in canonical:
            raise KeyError(f"the canonical weights have no {rule.name!r}; they have {len(canonical)} tensors")
        array = LAYOUTS[rule.layout].there(canonical[rule.name])
        if rule.layer is None:
            single[rule.path] = array
        else:
            stacked.setdefault(rule.path, {})[rule.layer] = array
    for path, by_layer in stacked.items():
        single[path] = np.stack([by_layer[i] for i in range(len(by_layer))])
    return single


def to_canonical(rules: Iterable[WeightRule], leaves: Mapping[Path, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of ``to_framework``."""
    found = {}
    for rule in rules:
        leaf = leaves[rule.path] if rule.layer is None else leaves[rule.path][rule.layer]
        found[rule.name] = LAYOUTS[rule.layout].back(leaf)
    return found


def canonical_hash(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, shapes, dtypes and bytes in name order: equal exactly when the weights are."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name}|{array.shape}|{array.dtype.name}|".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()
