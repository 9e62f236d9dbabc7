"""What a value is made of in the end."""

from __future__ import annotations

from dataclasses import replace

from detente.programs.module import Computation, Instruction, Shape
from detente.programs.parts import sites
from detente.programs.sources import sources
from tests.programs.build import parameter, program

S = (Shape("s32", (4,)),)


def op(opcode: str, *operands: int, **more) -> Instruction:
    return Instruction(opcode, S, operands, **more)


def of_gather(*rows: Instruction, others: tuple[Computation, ...] = ()) -> set[str]:
    """What the indices of the program's only lookup are made of."""
    (one,) = [s for s in sites(program([*rows], *others)) if s.operation.opcode == "gather"]
    return set(sources(one, one.operation.operands[1]))


def test_counts_constants_and_arguments_are_told_apart() -> None:
    table = parameter(0, 4)
    assert of_gather(table, op("iota"), op("constant"), op("add", 1, 2), op("gather", 0, 3)) == {
        "iota",
        "constant",
    }
    assert of_gather(table, parameter(1, 4), op("gather", 0, 1)) == {"parameter"}
    assert of_gather(table, op("constant"), op("broadcast", 1), op("gather", 0, 2)) == {"constant"}


def test_an_argument_of_a_function_is_what_its_caller_gives() -> None:
    """jnp.take is a function: within it the indices are an argument."""
    take = Computation("take", (parameter(0, 4), parameter(1, 4), op("add", 1, 1), op("gather", 0, 2)), 3)
    rows = [parameter(0, 4), op("iota"), op("call", 0, 1, called=("take",))]
    assert of_gather(*rows, others=(take,)) == {"iota"}
    twice = Computation("twice", (parameter(0, 4), parameter(1, 4), op("call", 0, 1, called=("take",))), 2)
    rows = [parameter(0, 4), op("constant"), op("call", 0, 1, called=("twice",))]
    assert of_gather(*rows, others=(take, twice)) == {"constant"}


def test_an_element_of_a_tuple_is_its_own() -> None:
    pair = replace(op("tuple", 1, 2), results=(*S, *S))
    rows = [parameter(0, 4), op("iota"), op("constant"), pair]
    assert of_gather(*rows, op("get-tuple-element", 3, number=1), op("gather", 0, 4)) == {"constant"}


def test_what_a_loop_hands_on_is_not_known() -> None:
    body = Computation("body", (parameter(0, 4), op("gather", 0, 0)), 1)
    cond = Computation("cond", (parameter(0, 4), op("compare", 0, 0)), 1)
    rows = [op("iota"), op("while", 0, called=("cond", "body"), trips=3)]
    assert of_gather(*rows, others=(cond, body)) == {"parameter"}


def test_what_is_made_of_very_much_is_data() -> None:
    """Every step back reads two: without an end of it, 2 to the 3,000th."""
    rows = [parameter(0, 4), op("iota"), *(op("add", k, k) for k in range(1, 3_000))]
    assert "..." in of_gather(*rows, op("gather", 0, len(rows) - 1))
