"""The map between canonical (torch) tensors and another framework's, rule by rule, both ways."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detente.records.fault import UsageFault

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Relayout:
    """A change of layout and its inverse."""

    there: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], np.ndarray]


LAYOUTS: dict[str, Relayout] = {
    "same": Relayout(lambda a: a, lambda a: a),
    # torch.nn.Linear keeps (out, in); Flax kernels are (in, out).
    "transposed": Relayout(lambda a: np.swapaxes(a, 0, 1), lambda a: np.swapaxes(a, 0, 1)),
    # torch convolutions are (out, in, *space); Flax kernels are (*space, in, out).
    "convolution": Relayout(
        lambda a: np.transpose(a, (*range(2, a.ndim), 1, 0)),
        lambda a: np.transpose(a, (a.ndim - 1, a.ndim - 2, *range(a.ndim - 2))),
    ),
    # A stack of matrices (experts), each of them transposed.
    "swapped": Relayout(lambda a: np.swapaxes(a, -1, -2), lambda a: np.swapaxes(a, -1, -2)),
}


@dataclass(frozen=True)
class Slice:
    """``start`` to ``stop`` along one axis."""

    axis: int
    start: int
    stop: int

    def of(self, array: np.ndarray) -> np.ndarray:
        return array[(slice(None),) * self.axis + (slice(self.start, self.stop),)]


@dataclass(frozen=True)
class Reshape:
    """The shape that the canonical side has after the layout, and the one that the leaf has: the same elements in the
    same order."""

    canonical: tuple[int, ...]
    leaf: tuple[int, ...]


@dataclass(frozen=True)
class WeightRule:
    """One canonical tensor, or a piece of one, and where it lives in the other framework.

    name     canonical name (torch's ``state_dict``)
    path     path of the leaf in the other framework's state
    layout   a key of LAYOUTS
    layer    index on a leading stacked axis, or None for a leaf of its own
    piece    the part of the canonical tensor that goes there (a split: torch's gates lie in one tensor, Flax's LSTM has
             a kernel for each); None for all of it
    reshape  a change of shape after the layout (heads on an axis of their own)
    into     the part of the leaf that it fills (a join: three projections in one kernel); None for all of it

    In this order on the way there, and in the opposite one on the way back. The pieces of a tensor cover it, and the
    parts of a leaf cover that, without a gap and without an overlap: otherwise a weight would be lost in silence.
    """

    name: str
    path: Path
    layout: str = "same"
    layer: int | None = None
    piece: Slice | None = None
    reshape: Reshape | None = None
    into: Slice | None = None

    def there(self, canonical: np.ndarray) -> np.ndarray:
        """What the leaf, or its part, holds."""
        array = LAYOUTS[self.layout].there(canonical if self.piece is None else self.piece.of(canonical))
        return (
            array
            if self.reshape is None
            else _reshaped(self, array, self.reshape.canonical, self.reshape.leaf)
        )

    def back(self, leaf: np.ndarray) -> np.ndarray:
        """The canonical tensor, or its piece, out of the leaf."""
        array = leaf if self.layer is None else leaf[self.layer]
        array = array if self.into is None else self.into.of(array)
        if self.reshape is not None:
            array = _reshaped(self, array, self.reshape.leaf, self.reshape.canonical)
        return LAYOUTS[self.layout].back(array)


def _reshaped(
    rule: WeightRule, array: np.ndarray, before: tuple[int, ...], after: tuple[int, ...]
) -> np.ndarray:
    if array.shape != before or math.prod(before) != math.prod(after):
        raise UsageFault(
            f"the rule of {rule.name!r} reshapes {before} to {after}, and there is {array.shape}",
            "shapes are those behind the layout, with the same number of elements",
        )
    return array.reshape(after)


class Leaves(Mapping[Path, np.ndarray]):
    """Canonical arrays as the other framework's leaves, each made when it is asked for: a stack of layers is new
    memory, and of a model that fills half of the machine all of them at once do not fit beside it.

    Raises KeyError naming a canonical tensor that is absent, and UsageFault naming a leaf or a tensor that two rules
    write, or that they do not cover: a leaf's own when it is asked for.
    """

    def __init__(self, rules: Iterable[WeightRule], canonical: Mapping[str, np.ndarray]) -> None:
        rules, self._canonical = tuple(rules), canonical
        for name, pieces in _by(rules, lambda rule: rule.name).items():
            if name not in canonical:
                raise KeyError(f"the canonical weights have no {name!r}; they have {len(canonical)} tensors")
            parts = [(rule.piece, f"leaf {rule.path}") for rule in pieces]
            _tiled(f"the canonical tensor {name!r}", parts, canonical[name].shape)
        self._rules = _by(rules, lambda rule: rule.path)

    def __getitem__(self, path: Path) -> np.ndarray:
        layers = _by(self._rules[path], lambda rule: rule.layer)
        if None in layers and len(layers) > 1:
            raise UsageFault(
                f"the leaf {path} is given whole and by layers", "give every rule of it a layer, or none"
            )
        joined = {
            layer: _joined(f"the leaf {path}", parts, self._canonical) for layer, parts in layers.items()
        }
        if None in joined:
            return joined[None]
        absent = sorted(set(range(len(joined))) - joined.keys())
        if absent:
            raise UsageFault(f"the leaf {path} has no layer {absent[0]}", f"its rules give {sorted(joined)}")
        return np.stack([joined[i] for i in range(len(joined))])

    def __contains__(self, path: object) -> bool:
        return path in self._rules  # a mapping's own asks for the leaf, which makes it

    def __iter__(self) -> Iterator[Path]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


def to_framework(rules: Iterable[WeightRule], canonical: Mapping[str, np.ndarray]) -> dict[Path, np.ndarray]:
    """All of ``Leaves``."""
    return dict(Leaves(rules, canonical))


def to_canonical(rules: Iterable[WeightRule], leaves: Mapping[Path, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of ``to_framework``. Raises UsageFault for pieces that leave a gap or overlap."""
    found = {}
    for name, pieces in _by(tuple(rules), lambda rule: rule.name).items():
        _tiled(f"the canonical tensor {name!r}", [(rule.piece, f"leaf {rule.path}") for rule in pieces], None)
        if pieces[0].piece is None:
            found[name] = pieces[0].back(leaves[pieces[0].path])
        else:
            ordered = sorted(pieces, key=lambda rule: _start(rule.piece))
            found[name] = np.concatenate([r.back(leaves[r.path]) for r in ordered], pieces[0].piece.axis)
    return found


def _joined(what: str, rules: list[WeightRule], canonical: Mapping[str, np.ndarray]) -> np.ndarray:
    arrays = {rule: rule.there(canonical[rule.name]) for rule in rules}
    _tiled(what, [(rule.into, f"{rule.name!r}") for rule in rules], None)
    if rules[0].into is None:
        return arrays[rules[0]]
    for rule, array in arrays.items():
        assert rule.into is not None
        if array.shape[rule.into.axis] != rule.into.stop - rule.into.start:
            raise UsageFault(
                f"{what} takes {rule.name!r} at {rule.into.start} to {rule.into.stop} of axis {rule.into.axis}, and it "
                f"has {array.shape}",
                "`into` is as long as what the rule brings, behind layout and reshape",
            )
    ordered = sorted(rules, key=lambda rule: _start(rule.into))
    return np.concatenate([arrays[rule] for rule in ordered], rules[0].into.axis)


def _start(part: Slice | None) -> int:
    return part.start if part is not None else 0


def _tiled(what: str, parts: list[tuple[Slice | None, str]], shape: tuple[int, ...] | None) -> None:
    """Refuse parts that overlap or leave a gap. Without a shape, where the last one ends is taken for the end."""
    slices = [(part, who) for part, who in parts if part is not None]
    if len(slices) < len(parts):
        if len(parts) > 1:
            raise UsageFault(
                f"{what} has {len(parts)} rules: {' and '.join(who for _, who in parts[:2])}",
                "one would overwrite the other: give each its part (`piece` of a tensor, `into` of a leaf)",
            )
        return
    axes = {part.axis for part, _ in slices}
    if len(axes) > 1:
        raise UsageFault(f"{what} is cut along the axes {sorted(axes)}", "cut it along one axis")
    end, before = 0, "its beginning"
    for part, who in sorted(slices, key=lambda p: p[0].start):
        if part.start != end or part.stop <= part.start:
            raise UsageFault(
                f"{what}: {who} has {part.start} to {part.stop} of axis {part.axis}, and {before} ends at {end}",
                "the parts must follow one another without a gap or an overlap",
            )
        end, before = part.stop, who
    if shape is not None and end != shape[next(iter(axes))]:
        raise UsageFault(
            f"{what} has {shape}, and its pieces end at {end}", "the pieces must cover the tensor"
        )


def _by(rules: Iterable[WeightRule], key: Callable[[WeightRule], Any]) -> dict[Any, list[WeightRule]]:
    groups: dict[Any, list[WeightRule]] = {}
    for rule in rules:
        groups.setdefault(key(rule), []).append(rule)
    return groups


def canonical_hash(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, shapes, dtypes and bytes in name order: equal exactly when the weights are."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name}|{array.shape}|{array.dtype.name}|".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()
