"""The first boundary of torch's that nothing in JAX agrees with.

Frameworks fuse differently, and a table of which operator is which would never end. Values need none: a boundary
agrees when something that JAX computed from any of its parameters, or a few operations behind, holds the same values;
or when pieces do, joined: one product where the other side has three, one batch where the other goes row by row.

A boundary that nothing agrees with may still be only another order of computing (a bias that is added after a sum).
Then what is computed from it agrees, and it is passed by: a wrong value would flow on.

How it can fail: a layer whose values are only in another order agrees, and the next one is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from detente.worker.layers.difference import Difference
from detente.worker.layers.record import Boundary, Values, distance, joined

# Relative to a tensor's rms. Both sides are in float64, and fair pairs measure 1e-16 to 1e-12; the smallest fault
# that people make, an epsilon of 1e-5 instead of 1e-6, is 5e-6 of what is normalised at variance 1, 5e-8 at 100.
TOLERANCE = 1e-9
# Where a side computes in float32 whatever it is given (nnx.MultiHeadAttention its softmax: 1e-8 to 2e-7), which both
# records tell, that is no wrong layer.
FLOAT32 = 1e-6

Parts = Mapping[str, tuple[str, ...]]


def first_difference(
    right: Sequence[Boundary],
    other: Sequence[Boundary],
    parts: Parts,
    tolerance: float = TOLERANCE,
    losses: tuple[float, float] | None = None,
) -> Difference | None:
    """The first difference, or None where every boundary agrees.

    ``right`` is torch's record and ``other`` JAX's, both of float64; ``parts`` names the leaves that hold a torch
    tensor, all of them or the stack that it is the i-th of (``name[i]``). A boundary none of whose tensors ``parts``
    names is not judged. Given ``losses`` (torch's, JAX's) a proof is known to have failed, and where every boundary
    agrees the answer says what is left: there is always one.
    """
    found = _first(right, other, parts, _Bound(tolerance, max(tolerance, FLOAT32)))
    if found is not None or losses is None:
        return found
    if drift := _first(right, other, parts, _Bound(tolerance, tolerance)):
        return replace(drift, kind="precision")
    apart = abs(losses[0] - losses[1]) / max(abs(losses[0]), 1e-12)
    agreed = right[-1].tensors if right else ()
    if apart > tolerance:
        return Difference("loss", error=apart, agreed=agreed)
    if hidden := _first(right, other, parts, _Bound(tolerance, tolerance), pass_by=False):
        return replace(hidden, kind="hidden")
    return Difference("backward", error=apart, agreed=agreed)


def _first(
    right: Sequence[Boundary], other: Sequence[Boundary], parts: Parts, bound: _Bound, pass_by: bool = True
) -> Difference | None:
    """``pass_by``: not what an agreeing boundary was computed from."""
    side = _Side(other)
    judged = [i for i, b in enumerate(right) if any(parts.get(t) for t in b.tensors)]
    nearest = {i: _nearest(right[i], side, parts) for i in judged}
    agrees = {i: found.within(bound) for i, found in nearest.items()}
    _join_passes(right, agrees, side, parts, bound)
    healed = _healed(right, agrees) if pass_by else frozenset[int]()
    last: tuple[str, ...] = ()
    for i in judged:
        boundary = right[i]
        for tensor in boundary.tensors:
            if any(not side.uses(leaf) for leaf in parts.get(tensor, ())):
                return Difference("unused", (tensor,), _shown(boundary), agreed=last)
        if not agrees[i] and i not in healed:
            given = _given(boundary, other, side.of(_leaves(boundary, parts)), bound)
            near = nearest[i]
            return Difference("layer", boundary.tensors, _shown(boundary), near.what, near.error, last, given)
        if agrees[i]:
            last = boundary.tensors
    return None


class _Side:
    """JAX's record by the leaf that was consumed. ``p[2]`` is served by what was consumed as ``p`` (a stack that was
    cut by hand), and ``p`` by ``p[0]``, ``p[1]``, …"""

    def __init__(self, boundaries: Sequence[Boundary]) -> None:
        self._by_name: dict[str, list[Boundary]] = defaultdict(list)
        self._below: dict[str, list[str]] = defaultdict(list)
        for boundary in boundaries:
            for name in boundary.tensors:
                if name not in self._by_name:
                    for whole in _stacks(name):
                        self._below[whole].append(name)
                self._by_name[name].append(boundary)

    def uses(self, leaf: str) -> bool:
        return bool(self.of_leaf(leaf))

    def of_leaf(self, leaf: str) -> list[Boundary]:
        for name in (leaf, *_stacks(leaf)):
            if name in self._by_name:
                return self._by_name[name]
        return [b for name in self._below.get(leaf, ()) for b in self._by_name[name]]

    def of(self, leaves: Sequence[str]) -> list[Boundary]:
        """Each once, those that consumed first."""
        found = {id(b): b for leaf in leaves for b in self.of_leaf(leaf)}
        return sorted(found.values(), key=lambda b: b.steps)


def _stacks(name: str) -> Iterator[str]:
    """``p[2][1]`` is a slice of ``p[2]`` and of ``p``."""
    while name.endswith("]") and "[" in name:
        name = name[: name.rindex("[")]
        yield name


def _leaves(boundary: Boundary, parts: Parts) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(parts.get(t, ()) for t in boundary.tensors)))


@dataclass(frozen=True)
class _Bound:
    """How far values may lie apart: where all is float64, and where a side went through narrower floats."""

    exact: float
    narrow: float

    def of(self, *boundaries: Boundary) -> float:
        return self.narrow if any(b.through for b in boundaries) else self.exact


@dataclass(frozen=True)
class _Near:
    """How far a candidate lies, what it is, and what both are made of."""

    error: float
    what: str
    of: tuple[Boundary, ...]

    def within(self, bound: _Bound) -> bool:
        return self.error <= bound.of(*self.of)


def _nearest(boundary: Boundary, side: _Side, parts: Parts) -> _Near:
    candidates = side.of(_leaves(boundary, parts))
    found = [_Near(float("inf"), _shown(candidates[0]) if candidates else "", (boundary,))]
    for one in candidates:
        found.append(_Near(distance(boundary.values, one.values), _shown(one), (boundary, one)))
    for pieces in _pieces(boundary, side, parts):
        error = distance(boundary.values, joined([b.values for b in pieces]))
        found.append(_Near(error, _shown(pieces[0]), (boundary, *pieces)))
    return min(found, key=lambda near: near.error)


def _pieces(boundary: Boundary, side: _Side, parts: Parts) -> Iterator[Sequence[Boundary]]:
    """Candidates that are as large together as this boundary: of one equation in a loop; and one of each leaf."""
    wanted = boundary.values.count
    for leaf in _leaves(boundary, parts):
        for passes in _by_site(side.of_leaf(leaf)):
            if len(passes) > 1 and sum(b.values.count for b in passes) == wanted:
                yield passes
    for tensor in boundary.tensors:
        leaves = parts.get(tensor, ())
        if len(leaves) < 2:
            continue
        rows = [[b for b in side.of_leaf(leaf) if b.values.count < wanted] for leaf in leaves]
        direct = [[b for b in row if not b.steps] for row in rows]
        for each in (direct, rows):
            for some in chain(zip(*each, strict=False), [[r[-1] for r in each]] if all(each) else []):
                if sum(b.values.count for b in some) == wanted:
                    yield some


def _by_site(boundaries: Sequence[Boundary]) -> list[list[Boundary]]:
    found: dict[int, list[Boundary]] = defaultdict(list)
    for boundary in boundaries:
        found[boundary.site].append(boundary)
    return list(found.values())


def _join_passes(
    right: Sequence[Boundary], agrees: dict[int, bool], side: _Side, parts: Parts, bound: _Bound
) -> None:
    """torch went row by row where JAX computed all at once: then the passes agree together."""
    sites: dict[int, list[int]] = defaultdict(list)
    for i in agrees:
        sites[right[i].site].append(i)
    for places in sites.values():
        if len(places) > 1 and not any(agrees[i] for i in places):
            together = joined([right[i].values for i in places])
            candidates = side.of(_leaves(right[places[0]], parts))
            passes = [right[i] for i in places]
            if any(distance(together, b.values) <= bound.of(b, *passes) for b in candidates):
                agrees.update(dict.fromkeys(places, True))


def _healed(right: Sequence[Boundary], agrees: Mapping[int, bool]) -> frozenset[int]:
    """Those from which an agreeing boundary was computed: had they been wrong, it would be.

    Not where that one tells nothing: a layer that starts at zero agrees whatever it is given. A branch that is scaled
    by 1e-6 tells too little, and what is wrong within it is passed by (``hidden``).
    """
    found: set[int] = set()
    for i in reversed(range(len(right))):
        telling = not agrees.get(i) or _telling(right[i].values)
        if telling and (agrees.get(i) or i in found):
            found.update(right[i].after)
    return frozenset(found)


def _telling(values: Values) -> bool:
    """Whether most values differ from each other: a bias that was added to zeros is the same in every row."""
    ordered = values.ordered
    if ordered.size < 2:
        return bool(ordered.size and ordered[0])
    with np.errstate(invalid="ignore"):
        return float(np.mean(np.diff(ordered) > 1e-12 * values.rms)) >= 0.5


def _given(
    boundary: Boundary, other: Sequence[Boundary], candidates: Sequence[Boundary], bound: _Bound
) -> bool | None:
    """Whether what flowed in is anywhere in JAX. What a normalisation was given need not have been recorded there; what
    a product was given is."""
    if boundary.given is None:
        return None
    for one in other:
        seen = (one.values, one.given) if one.given else (one.values,)
        if any(distance(boundary.given, v) <= bound.of(boundary, one) for v in seen):
            return True
    alike = any(b.given is not None and b.given.count == boundary.given.count for b in candidates)
    return False if alike else None


def _shown(boundary: Boundary) -> str:
    return f"{boundary.what} {list(boundary.shape)}"
