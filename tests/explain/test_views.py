"""Elements of an operand, found behind whatever moved them: every view is held against numpy."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from detente.explain.views import View, view
from detente.programs.module import Computation, Instruction, Shape


def made(dims: tuple[int, ...], *moves: tuple[str, tuple[int, ...], tuple[int, ...]]) -> Computation:
    """A source of these dimensions, and moves (opcode, dimensions of the result, numbers), each of the one before."""
    rows = [Instruction("tanh", (Shape("f32", dims),))]
    for opcode, result, numbers in moves:
        rows.append(Instruction(opcode, (Shape("f32", result),), (len(rows) - 1,), dimensions=numbers))
    return Computation("main", tuple(rows), len(rows) - 1)


def moved(home: Computation) -> np.ndarray:
    """Which element of the source stands where, by numpy."""
    first, *rest = home.instructions
    found = np.arange(math.prod(first.shape.dims)).reshape(first.shape.dims)
    for one in rest:
        if one.opcode == "transpose":
            found = found.transpose(one.dimensions)
        elif one.opcode == "broadcast":
            spread = [1] * len(one.shape.dims)
            for axis, size in zip(one.dimensions, found.shape, strict=True):
                spread[axis] = size
            found = np.broadcast_to(found.reshape(spread), one.shape.dims)
        else:
            found = found.reshape(one.shape.dims)
    return found


def elements(found: View) -> list[int]:
    """Which element of the source is read at each place, as the pieces say."""
    places = [0]
    for here, size, there in found.pieces:
        assert here == len(places)
        places = [place + k * there for k in range(size) for place in places]
    return places


def read(home: Computation) -> View:
    return view(home, len(home.instructions) - 1)


def random_moves(drawn: random.Random) -> Computation:
    sizes = [drawn.choice((1, 2, 3)) for _ in range(drawn.randint(1, 4))]
    home = made(tuple(sizes))
    moves = []
    dims = tuple(sizes)
    for _ in range(drawn.randint(1, 5)):
        kind = drawn.choice(("transpose", "reshape", "broadcast"))
        if kind == "transpose":
            numbers = tuple(drawn.sample(range(len(dims)), len(dims)))
            dims = tuple(dims[k] for k in numbers)
        elif kind == "broadcast":
            if math.prod(dims) > 200:
                continue
            at = drawn.randint(0, len(dims))
            numbers = tuple(k if k < at else k + 1 for k in range(len(dims)))
            dims = (*dims[:at], drawn.choice((2, 3)), *dims[at:])
        else:
            # Neighbours put together, or one split.
            numbers = ()
            if len(dims) > 1 and drawn.random() < 0.5:
                at = drawn.randrange(len(dims) - 1)
                dims = (*dims[:at], dims[at] * dims[at + 1], *dims[at + 2 :])
            else:
                at = drawn.randrange(len(dims))
                divisors = [d for d in range(1, dims[at] + 1) if dims[at] % d == 0]
                some = drawn.choice(divisors)
                dims = (*dims[:at], some, dims[at] // some, *dims[at + 1 :])
        moves.append((kind, dims, numbers))
    return made(home.instructions[0].shape.dims, *moves)


@pytest.mark.parametrize("seed", range(200))
def test_a_view_reads_what_numpy_reads(seed: int) -> None:
    home = random_moves(random.Random(seed))
    found = read(home)
    if found.pieces:
        # Pieces of the innermost places come first; an axis of one place has none.
        assert elements(found) == moved(home).ravel().tolist()
    else:
        assert found.chain or moved(home).size == 1


def test_most_views_are_told_by_strides() -> None:
    told = [read(random_moves(random.Random(seed))) for seed in range(200)]
    assert sum(not one.chain for one in told) > 190


def test_a_reshape_is_no_difference_and_a_transpose_is_one() -> None:
    flat = made((2, 3, 4), ("reshape", (6, 4), ()))
    assert read(flat) == View(0, ((1, 24, 1),)) == read(made((2, 3, 4)))
    turned = made((2, 3, 4), ("transpose", (3, 2, 4), (1, 0, 2)))
    assert read(turned).elements != read(flat).elements
    again = made((2, 3, 4), ("transpose", (3, 2, 4), (1, 0, 2)), ("transpose", (2, 3, 4), (1, 0, 2)))
    assert read(again) == read(flat)


def test_along_which_axis_a_vector_is_repeated() -> None:
    rows, columns = (made((4,), ("broadcast", (4, 4), (axis,))) for axis in (0, 1))
    assert read(rows).elements != read(columns).elements
    scalar = made((), ("broadcast", (2, 8), ()))
    assert read(scalar) == read(made((), ("broadcast", (16,), ()), ("reshape", (2, 8), ())))


def test_an_axis_that_a_reshape_cuts_is_told_by_its_moves() -> None:
    cut = [("reshape", (3, 2), ()), ("transpose", (2, 3), (1, 0))]
    odd = made(
        (2, 3), ("transpose", (3, 2), (1, 0)), ("reshape", (2, 3), ()), *[("transpose", (3, 2), (1, 0))]
    )
    assert read(odd).chain and read(odd).elements == read(odd).elements
    assert not read(made((2, 3), *cut)).chain
    other = made((2, 3), ("transpose", (3, 2), (1, 0)), ("reshape", (2, 3), ()), ("reshape", (6,), ()))
    assert read(odd).elements != read(other).elements


def test_a_program_that_contradicts_itself_falls_over_nothing() -> None:
    for numbers in ((0, 5), (0, 0), (-1, 0), (0,), ()):
        assert read(made((2, 2), ("transpose", (2, 2), numbers))).source == 0
    assert view(made((2, 2)), 0, (7,)).chain
    assert read(made((2, 0), ("reshape", (0, 2), ()), ("transpose", (2, 0), (1, 0)))).source == 0


def test_the_order_of_what_is_put_together_is_no_difference() -> None:
    whole = made((2, 3, 4))
    assert view(whole, 0, (0, 1)).in_any_order == view(whole, 0, (1, 0)).in_any_order
    assert view(whole, 0, (0, 1)).elements != view(whole, 0, (1, 0)).elements
    for a, b in itertools.combinations(range(3), 2):
        assert view(whole, 0, (a,)).in_any_order != view(whole, 0, (b,)).in_any_order
