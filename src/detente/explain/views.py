"""Where the elements of an operand come from, whatever only moved them on their way.

An axis is told by its **stride**: how many elements lie between two neighbours along it, in memory order. A reshape
changes no stride, so that ``[batch, time, width]`` and ``[batch * time, width]`` are one; a transpose says which stride
stands where; along a broadcast's new axis it is 0, for every place reads the same element. What a reader sees of a
source is then a list of pieces (stride in the reader, size, stride in the source), joined where they lie together: two
programs that lay their data out in other shapes read the same elements where their lists are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from detente.programs.module import Computation, Instruction
from detente.programs.parts import MOVES

# (stride in the reader, size, stride in the source)
Piece = tuple[int, int, int]


@dataclass(frozen=True)
class View:
    """``source``: the position of what made the operand, in the same computation. ``pieces``: from the innermost axis
    on. ``chain``: where a reshape cuts through an axis and the elements cannot be told by strides, every move on the
    way as it stands; two such are the same where these are."""

    source: int
    pieces: tuple[Piece, ...]
    chain: tuple[object, ...] = ()

    @property
    def elements(self) -> tuple[object, ...]:
        """What must be equal for the same elements to be read."""
        return self.chain or self.pieces

    @property
    def in_any_order(self) -> tuple[object, ...]:
        """The same, where it makes no difference in which order they are read."""
        here, sorted_ = 1, []
        for _, size, there in sorted(self.pieces, key=lambda piece: piece[2]):
            sorted_.append((here, size, there))
            here *= size
        return self.chain or _joined(sorted_)


def view(
    home: Computation,
    operand: int,
    axes: Sequence[int] | None = None,
    through: Callable[[int], bool] = lambda position: True,
) -> View:
    """What is read of an operand along some of its axes, the last of them the innermost; None: along all, in its own
    order. ``through``: which moves are looked through, by their positions.

    >>> from detente.programs.module import Shape
    >>> x = Instruction("tanh", (Shape("f32", (2, 3)),))
    >>> turned = Instruction("transpose", (Shape("f32", (3, 2)),), (0,), dimensions=(1, 0))
    >>> view(Computation("main", (x, turned), 1), 1).pieces
    ((1, 2, 3), (2, 3, 1))
    """
    one = home.instructions[operand]
    dims = one.shape.dims
    strides = _strides(dims)
    pieces: list[Piece] | None = []
    here = 1
    for axis in reversed(range(len(dims)) if axes is None else axes):
        if not 0 <= axis < len(dims):  # of a program that contradicts itself
            return View(operand, (), ("beyond", dims, tuple(axes or ())))
        pieces.append((here, dims[axis], strides[axis]))
        here *= dims[axis]
    chain: list[object] = [tuple(axes) if axes is not None else None]
    for _ in range(len(home.instructions)):
        if one.opcode not in MOVES or not one.operands or not through(operand):
            break
        chain.append((one.opcode, one.shape.dims, one.dimensions))
        operand = one.operands[0]
        inner = home.instructions[operand]
        pieces = _through(one, inner, pieces) if pieces is not None else None
        one = inner
    if pieces is None:
        return View(operand, (), (*chain, one.shape.dims))
    return View(operand, _joined(pieces))


def _through(move: Instruction, inner: Instruction, pieces: Sequence[Piece]) -> list[Piece] | None:
    """The same pieces with the strides of what a move is of; None where that cannot be said."""
    if move.opcode not in ("transpose", "broadcast"):
        return list(pieces) if move.shape.elements == inner.shape.elements else None
    axes = _axes(move, inner)
    if axes is None:
        return None
    strides = _strides(inner.shape.dims)
    found: list[Piece] = []
    for here, size, there in pieces:
        if there == 0:
            found.append((here, size, 0))
            continue
        cut = _cut(there, size, move.shape.dims)
        if cut is None:
            return None
        at = here
        for axis, within, some in cut:
            mine = axes.get(axis)
            found.append((at, some, 0 if mine is None else strides[mine] * within))
            at *= some
    return found


def _axes(move: Instruction, inner: Instruction) -> Mapping[int, int] | None:
    """Axis of a transpose's or a broadcast's result -> axis of its operand; None where its numbers make no sense."""
    given, result = move.dimensions, move.shape.dims
    if len(given) != len(inner.shape.dims):
        return None
    turned = move.opcode == "transpose"
    axes = {(k if turned else axis): (axis if turned else k) for k, axis in enumerate(given)}
    if len(set(axes.values())) != len(given) or len(axes) != len(given):
        return None
    right = all(
        0 <= axis < len(result) and 0 <= mine < len(given) and result[axis] == inner.shape.dims[mine]
        for axis, mine in axes.items()
    )
    return axes if right else None


def _cut(stride: int, size: int, dims: Sequence[int]) -> list[tuple[int, int, int]] | None:
    """A piece of an array of these dimensions as (axis, stride within it, size), the innermost first; None where it
    begins or ends within an axis that it does not divide.

    >>> _cut(3, 8, (4, 2, 3))
    [(1, 1, 2), (0, 1, 4)]
    """
    found, end, place, whole = [], stride * size, 1, 1
    for axis in reversed(range(len(dims))):
        above = place * dims[axis]
        low, high = max(stride, place), min(end, above)
        if low < high:
            if low % place or low % stride or high % low or above % high:
                return None
            found.append((axis, low // place, high // low))
            whole *= high // low
        place = above
    return found if whole == size else None


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    found: list[Piece] = []
    for here, size, there in sorted(pieces):
        if size == 1:
            continue
        if found:
            before, many, source = found[-1]
            if before * many == here and source * many == there:
                found[-1] = (before, many * size, source)
                continue
        found.append((here, size, there))
    return tuple(found)


def _strides(dims: Sequence[int]) -> list[int]:
    found, place = [], 1
    for size in reversed(dims):
        found.append(place)
        place *= size
    return found[::-1]
