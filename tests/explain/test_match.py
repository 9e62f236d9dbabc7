"""Operations of two parts: the same ones are found, and what one side has alone is left over."""

from __future__ import annotations

import time
from dataclasses import replace

from detente.explain.match import match
from detente.programs.module import Instruction, Shape
from detente.programs.parts import sites
from tests.explain.golden import side
from tests.programs.build import parameter, program

F = (Shape("f32", (4, 4)),)


def op(opcode, *operands, dtype="f32"):
    return Instruction(opcode, (Shape(dtype, (4, 4)),), operands)


BASE = [parameter(0, 4, 4), parameter(1, 4, 4), op("multiply", 0, 1), op("exponential", 2), op("add", 3, 0)]


def of(rows):
    return sites(program(rows))


def test_a_part_and_itself_are_the_same(tmp_path) -> None:
    found = match(of(BASE), of(BASE))
    assert len(found.same) == 3 and not found.only_a and not found.only_b and found.dice == 1.0
    real = side(tmp_path, "jax").sites
    found = match(real, real)
    assert not found.alike and not found.only_a and not found.only_b


def test_the_order_of_a_sum_is_no_difference() -> None:
    other = [*BASE[:2], op("multiply", 1, 0), op("exponential", 2), op("add", 0, 3)]
    assert len(match(of(BASE), of(other)).same) == 3


def test_what_only_moves_data_is_looked_through() -> None:
    other = [*BASE[:3], op("transpose", 2), op("reshape", 3), op("exponential", 4), op("add", 5, 0)]
    found = match(of(BASE), of(other))
    assert len(found.same) == 3 and not found.only_b and found.dice == 1.0


def test_an_operation_more_is_left_over_and_what_it_feeds_is_only_alike() -> None:
    other = [*BASE[:3], op("tanh", 2), op("exponential", 3), op("add", 4, 0)]
    found = match(of(BASE), of(other))
    assert found.same == ((0, 0),) and [of(other)[k].operation.opcode for k in found.only_b] == ["tanh"]
    assert len(found.alike) == 2 and not found.only_a


def test_another_dtype_is_another_operation() -> None:
    other = [*BASE[:2], replace(BASE[2], results=(Shape("s64", (4, 4)),)), *BASE[3:]]
    found = match(of(BASE), of(other))
    assert [k for k, _ in found.same] == [] and found.only_a == (0,) and found.only_b == (0,)


def test_a_batch_norm_is_what_it_is_made_of() -> None:
    norm = [parameter(0, 4, 4), op("batch-norm-training", 0, 0, 0)]
    written = [
        parameter(0, 4, 4),
        *(op(o, 0) for o in ("reduce", "divide", "subtract", "multiply", "reduce")),
    ]
    written += [op(o, k) for k, o in enumerate(("divide", "add", "rsqrt", "multiply", "multiply", "add"), 5)]
    # A chain, so that all of it is alive.
    chain = [written[0]]
    for k, one in enumerate(written[1:]):
        chain.append(replace(one, operands=(k,)))
    assert match(of(norm), of(chain)).dice == 1.0


def test_a_large_part_is_matched_in_time() -> None:
    """One set was made anew for every element: twice the operations took four times as long."""
    large = of([parameter(0, 4, 4), *(op("tanh", k) for k in range(20_000))])
    begun = time.perf_counter()
    assert len(match(large, large).same) == 20_000
    assert time.perf_counter() - begun < 10
