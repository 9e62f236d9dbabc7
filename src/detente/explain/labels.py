"""What an operation of a part is, in labels from coarse to fine: its opcode and dtype; the operation itself, by size,
axes and settings; and then its neighbourhood, round by round.

What only moves data has no label: it is looked through, and what it does to the elements is part of what its reader
reads (views.py). At the border of a part the operand counts as it is handed over: how another part lays out what it
makes is that one's business.

Three things are set aside: how a weight lies in memory that a product reads (PyTorch's ``Linear`` has it the other way
round than Flax's), the layout of a convolution, and the precision that a product asks for (programs/attributes.py).
Constants are compared as values, wherever they are written.

Sources: B. Weisfeiler, A. Lehman, 1968; N. Shervashidze et al., Weisfeiler-Lehman Graph Kernels, JMLR 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from detente.explain.views import View, view
from detente.programs.module import Computation, Convolution, Dot, Instruction
from detente.programs.parts import MOVES, Site

_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
_ROUNDS = 3
# What is laid out along axes without saying so in a number of its own.
_LAID_OUT = frozenset({"dynamic-update-slice", "custom-call", "triangular-solve", "cholesky", "fft"})


def labels_of(sites: Sequence[Site]) -> dict[int, list[int]]:
    """Position -> its labels: opcode and dtype, the operation itself, and one per round; moves have none. They can be
    compared within a process."""
    part = _Part(sites)
    labels: dict[int, list[int]] = {}
    read: dict[int, list[tuple[int | str, int]]] = {}
    for k, site in enumerate(sites):
        one, home = site.operation, site.home
        if one.opcode in MOVES:
            continue
        kind = hash((one.opcode, one.shape.dtype))
        labels[k] = [kind, hash((kind, _itself(one, home)))]
        read[k] = [(part.made(source, home), seen) for source, seen in part.read(one, home)]
    for _ in range(_ROUNDS):
        new = {}
        for k, known in labels.items():
            fed = [
                hash((labels[f][-1] if isinstance(f, int) and f in labels else f, seen))
                for f, seen in read[k]
            ]
            if sites[k].operation.opcode in _COMMUTATIVE:
                fed.sort()
            new[k] = hash((known[-1], tuple(fed)))
        for k, label in new.items():
            labels[k].append(label)
    return labels


def _itself(one: Instruction, home: Computation) -> object:
    """What an operation is, whoever feeds it: its size and its settings. Of a product the sizes of its groups of axes:
    which axes those are, what it reads says."""
    results = tuple((shape.dtype, shape.elements) for shape in one.results)
    if isinstance(one.detail, Convolution):
        return results, one.detail, one.attributes
    if isinstance(one.detail, Dot) and len(one.operands) == 2:
        left, right = (
            [_size(home, operand, axes) for axes in groups]
            for operand, *groups in _groups(one, one.detail, home)
        )
        # Whichever of the two stands first: the result is then transposed.
        sizes = tuple(left[:2]), tuple(sorted((left[2], right[2])))
        return results, one.attributes, sizes
    if one.opcode == "reduce" and one.operands:
        kept, gone = _kept_and_gone(one, one.operands[0], home)
        seen = [view(home, one.operands[0], axes, _never) for axes in (kept, gone)]
        return results, one.attributes, one.target, seen[0].elements, seen[1].in_any_order
    if one.dimensions or one.attributes or one.detail is not None or one.opcode in _LAID_OUT:
        shapes = tuple(s.dims for o in one.operands for s in home.instructions[o].results)
        dims = tuple(s.dims for s in one.results)
        return results, one.attributes, one.target, one.dimensions, dims, shapes, one.detail
    return results, one.target


def _never(position: int) -> bool:
    return False


def _kept_and_gone(one: Instruction, operand: int, home: Computation) -> tuple[list[int], list[int]]:
    """The axes of an array that a reduction keeps, and those that it puts together."""
    rank = len(home.instructions[operand].shape.dims)
    return [k for k in range(rank) if k not in one.reduced], [k for k in range(rank) if k in one.reduced]


def _groups(
    one: Instruction, detail: Dot, home: Computation
) -> list[tuple[int, Sequence[int], list[int], list[int]]]:
    """A product's operands, each with its axes: the product is batched over the first, contracts the second, and has
    the others in its result. The pairs of contracted axes stand in the order in which the left operand has them."""
    order = sorted(range(len(detail.contracting)), key=lambda k: detail.contracting[k])
    found = []
    for operand, batch, contracted in zip(
        one.operands, (detail.batch, detail.right_batch), (detail.contracting, detail.right), strict=True
    ):
        paired = [contracted[k] for k in order if k < len(contracted)]
        rank = len(home.instructions[operand].shape.dims)
        free = [k for k in range(rank) if k not in batch and k not in contracted]
        found.append((operand, batch, paired, free))
    return found


def _size(home: Computation, operand: int, axes: Sequence[int]) -> int:
    dims = home.instructions[operand].shape.dims
    return math.prod(dims[k] for k in axes if 0 <= k < len(dims))


class _Part:
    """The operations of a part, and what they read."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._at = {(site.home.name, id(site.operation)): k for k, site in enumerate(sites)}

    def made(self, source: int, home: Computation) -> int | str:
        """The operation of the part that stands there; of a constant its value, and of what comes from outside its
        dtype and size."""
        one = home.instructions[source]
        position = self._at.get((home.name, id(one)))
        if position is not None:
            return position
        if one.opcode == "constant":
            return f"constant {one.shape} {one.integers} {one.attributes}"
        return f"outside {one.shape.dtype} {one.shape.elements}"

    def read(self, one: Instruction, home: Computation) -> list[tuple[int, int]]:
        """Of each operand what made it, as a position in the computation, and which of its elements are read where."""
        if isinstance(one.detail, Convolution):
            return [(view(home, operand).source, 0) for operand in one.operands]
        if isinstance(one.detail, Dot) and len(one.operands) == 2:
            return self._of_product(one.detail, one, home)
        # A reduction's operands are arrays, and then as many values to begin with.
        arrays = (len(one.operands) + 1) // 2 if one.opcode == "reduce" else 0
        found = [self._of_reduction(one, operand, home) for operand in one.operands[:arrays]]
        for operand in one.operands[arrays:]:
            seen = self._view(home, operand)
            found.append((seen.source, hash(seen.elements)))
        return found

    def _view(self, home: Computation, operand: int, axes: Sequence[int] | None = None) -> View:
        """To what made it, where that is of this part, a constant, the model's own or a single number; else to the
        border of the part."""
        whole = view(home, operand, axes)
        made = home.instructions[whole.source]
        if (
            made.opcode in ("constant", "parameter")
            or made.shape.elements == 1
            or self._inside(home, whole.source)
        ):
            return whole
        return view(home, operand, axes, lambda position: self._inside(home, position))

    def _inside(self, home: Computation, position: int) -> bool:
        return (home.name, id(home.instructions[position])) in self._at

    def _of_reduction(self, one: Instruction, operand: int, home: Computation) -> tuple[int, int]:
        """What is kept, in its order, and what is put together, in any."""
        seen, gone = (self._view(home, operand, axes) for axes in _kept_and_gone(one, operand, home))
        return seen.source, hash((seen.elements, gone.in_any_order))

    def _of_product(self, detail: Dot, one: Instruction, home: Computation) -> list[tuple[int, int]]:
        """A weight of the model may lie in memory either way round: of a parameter no more than the sizes count."""
        found = []
        for operand, *groups in _groups(one, detail, home):
            seen = [self._view(home, operand, axes) for axes in groups]
            source = seen[0].source
            weight = home.instructions[source].opcode == "parameter"
            found.append((source, 0 if weight else hash(tuple(group.elements for group in seen))))
        return found
