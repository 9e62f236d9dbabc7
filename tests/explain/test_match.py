"""Operations of two parts: the same ones are found, and what one side has alone is left over."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from detente.explain.align import align
from detente.explain.match import match
from detente.programs.module import Dot, Instruction, Shape
from detente.programs.parts import parts, sites
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
    assert not (found.displaced or found.alike or found.only_a or found.only_b) and found.identical == 1.0


def test_the_order_of_a_sum_is_no_difference() -> None:
    other = [*BASE[:2], op("multiply", 1, 0), op("exponential", 2), op("add", 0, 3)]
    assert len(match(of(BASE), of(other)).same) == 3


def turned(operand):
    return replace(op("transpose", operand), dimensions=(1, 0))


def test_what_only_moves_data_is_looked_through() -> None:
    other = [*BASE[:3], turned(2), op("reshape", 3), turned(4), op("exponential", 5), op("add", 6, 0)]
    found = match(of(BASE), of(other))
    assert len(found.same) == 3 and not found.only_b and found.dice == found.identical == 1.0


def test_and_what_it_does_to_the_order_of_elements_is_a_difference() -> None:
    """x + exp(x y) and x + exp(x y) transposed were the same."""
    other = [*BASE[:3], turned(2), op("exponential", 3), op("add", 4, 0)]
    found = match(of(BASE), of(other))
    assert [of(BASE)[k].operation.opcode for k, _ in found.same] == ["multiply"]
    assert len(found.displaced) == 2 and not found.alike and found.dice == 1.0


def test_an_operation_more_is_left_over_and_what_it_feeds_is_only_alike() -> None:
    other = [*BASE[:3], op("tanh", 2), op("exponential", 3), op("add", 4, 0)]
    found = match(of(BASE), of(other))
    assert found.same == ((0, 0),) and [of(other)[k].operation.opcode for k in found.only_b] == ["tanh"]
    assert len(found.displaced) == 2 and not found.alike and not found.only_a


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


# What merely resembles ----------------------------------------------------------------------------------------------


def softmax(wide=4, over=1, way="LT", number=0, contracted=1, back=(0,), dtype="f32"):
    """A masked softmax and a product: each argument is one thing that may be another."""
    square, mask = (Shape(dtype, (wide, wide)),), (Shape("pred", (wide, wide)),)
    return of(
        [
            parameter(0, wide, wide),
            Instruction("constant", (Shape("s32"),), integers=(number,)),
            Instruction("convert", (Shape(dtype),), (1,)),
            Instruction("broadcast", square, (2,)),
            Instruction("compare", mask, (0, 3), target=way),
            Instruction("select", square, (4, 0, 3)),
            Instruction("exponential", square, (5,)),
            Instruction("reduce", (Shape(dtype, (wide,)),), (6, 2), reduced=(over,)),
            Instruction("broadcast", square, (7,), dimensions=back),
            Instruction("divide", square, (6, 8)),
            Instruction("dot", square, (9, 0), detail=Dot((contracted,), (), (0,))),
        ]
    )


@pytest.mark.parametrize(
    ("changed", "itself", "fed"),
    [
        ({"over": 0}, ["reduce"], ["divide", "dot"]),
        ({"way": "GT"}, ["compare"], ["select", "exponential", "reduce"]),
        # Behind the constant: the conversion is of another number, and what it feeds of another mask.
        ({"number": -1000}, [], ["convert", "compare", "select", "reduce", "divide"]),
        # A product over another axis of the same operand reads other elements.
        ({"contracted": 0}, [], ["dot"]),
        ({"back": (1,)}, [], ["divide", "dot"]),
        ({"wide": 4096}, ["compare", "select", "exponential", "reduce", "divide", "dot"], []),
    ],
    ids=lambda x: "-".join(map(str, x)),
)
def test_a_resemblance_is_told_as_one(changed, itself, fed) -> None:
    """All of these were 100 % alike and green: opcode and dtype are the same."""
    plain, other = softmax(), softmax(**changed)
    found = match(plain, other)
    assert found.dice == 1.0 and not found.only_a and not found.only_b and found.identical < 1.0

    def opcodes(pairs):
        return {plain[k].operation.opcode for k, _ in pairs}

    assert opcodes(found.alike) == set(itself)
    assert set(fed) <= opcodes(found.displaced) and not opcodes(found.same) & {*itself, *fed}
    assert found.same


def test_what_a_reduction_applies_and_which_number_stands_there_are_part_of_it() -> None:
    def ending(applied: str, value: str):
        return of(
            [
                parameter(0, 4, 4),
                Instruction("constant", (Shape("f32"),), attributes=value),
                Instruction("reduce", (Shape("f32", (4,)),), (0, 1), reduced=(1,), attributes=applied),
            ]
        )

    assert len(match(ending("max", "0"), ending("max", "0")).same) == 1
    assert len(match(ending("max", "0"), ending("add", "0")).alike) == 1
    assert len(match(ending("max", "0"), ending("max", "1")).displaced) == 1


def test_the_shape_in_which_rows_lie_is_no_difference() -> None:
    """torch_xla writes [batch x time, width] where JAX writes [batch, time, width]."""

    def layer(*rows):
        wide = (Shape("f32", (*rows, 8)),)
        last = len(rows)
        return of(
            [
                parameter(0, 6, 8),
                parameter(1, 8, 8),
                parameter(2, 8),
                Instruction("reshape", wide, (0,)),
                Instruction("tanh", wide, (3,)),
                Instruction("dot", wide, (4, 1), detail=Dot((last,), (), (0,))),
                Instruction("broadcast", wide, (2,), dimensions=(last,)),
                Instruction("add", wide, (5, 6)),
                Instruction("reduce", (Shape("f32", (8,)),), (7, 2), reduced=tuple(range(last))),
            ]
        )

    assert match(layer(6), layer(2, 3)).identical == 1.0
    assert match(layer(6), layer(3, 2)).identical == 1.0


def test_heads_are_the_same_heads_wherever_a_product_has_them() -> None:
    """JAX batches over axes 0 and 2 of [batch, time, heads, width]; PyTorch turns them to the front, and puts them
    together, first."""
    entry = [parameter(0, 2, 3, 4, 5), Instruction("tanh", (Shape("f32", (2, 3, 4, 5)),), (0,))]
    jax = [
        *entry,
        Instruction("dot", (Shape("f32", (2, 4, 3, 3)),), (1, 1), detail=Dot((3,), (0, 2), (3,), (0, 2))),
    ]
    torch = [
        *entry,
        Instruction("transpose", (Shape("f32", (2, 4, 3, 5)),), (1,), dimensions=(0, 2, 1, 3)),
        Instruction("reshape", (Shape("f32", (8, 3, 5)),), (2,)),
        Instruction("dot", (Shape("f32", (8, 3, 3)),), (3, 3), detail=Dot((2,), (0,), (2,), (0,))),
    ]
    assert match(of(jax), of(torch)).identical == 1.0
    # Over time in place of heads it is another product.
    wrong = [
        *entry,
        replace(jax[-1], detail=Dot((3,), (0, 1), (3,), (0, 1)), results=(Shape("f32", (2, 3, 4, 4)),)),
    ]
    assert match(of(jax), of(wrong)).identical < 1.0


def test_a_weight_may_lie_either_way_round() -> None:
    def linear(dims, contracted):
        rows = [parameter(0, 4, 8), op("tanh", 0), parameter(1, *dims)]
        rows[1] = replace(rows[1], results=(Shape("f32", (4, 8)),))
        product = Instruction("dot", (Shape("f32", (4, 6)),), (1, 2), detail=Dot((1,), (), (contracted,)))
        return of([*rows, product])

    assert match(linear((8, 6), 0), linear((6, 8), 1)).identical == 1.0


def test_two_stacks_at_the_same_workload_still_match(tmp_path) -> None:
    """Green means the same operation, and must not mean the same text."""
    torch, jax = side(tmp_path, "torch-xla"), side(tmp_path, "jax")
    rows = align(parts(torch.sites), parts(jax.sites), torch.anchors, jax.anchors)
    found = {(r.path, r.direction): match(torch.of(r.a), jax.of(r.b)) for r in rows}
    for path in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
        assert found[f"transformer.h.*.{path}", "forward"].identical == 1.0, path
    # The attention's masks are written in two ways; its heads, its slices and its softmax are found.
    attention = found["transformer.h.*.attn", "forward"]
    assert 0.2 < attention.identical < attention.dice and attention.dice > 0.75
    numbers = [len(pairs) for one in found.values() for pairs in (one.same, one.displaced, one.alike)]
    same, displaced, alike = (sum(numbers[k::3]) for k in range(3))
    assert (same + displaced) / (same + displaced + alike) > 0.85 and displaced > same > 50
    for r in rows:
        mine = torch.of(r.a)
        assert match(mine, mine).identical == 1.0
