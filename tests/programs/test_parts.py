"""Operations by the part of the model that they belong to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detente.programs.module import Computation, Dot, Instruction, Module, ProgramError, Shape
from detente.programs.parts import Part, coverage, kernels, movers, parts, sites, transposes
from tests.programs.build import parameter, program

F = (Shape("f32", (4, 4)),)


def op(opcode: str, *operands: int, origin: str = "", called: tuple[str, ...] = ()) -> Instruction:
    return Instruction(opcode, F, operands, called=called, origin=origin)


def found(module):
    return [(s.operation.opcode, s.part.path, s.part.direction, s.how) for s in sites(module)]


def test_names_flow_and_guesses_are_told_apart() -> None:
    module = program(
        [
            parameter(0, 4, 4),
            op("add", 0, 0, origin="jit(f)/jvp(h.0)/attn/add"),
            op("copy", 1),  # between two of one module
            op("multiply", 2, 1, origin="jit(f)/jvp(h.0)/attn/mul"),
            op("reshape", 3),  # out of attn alone, but into two
            op("tanh", 4, origin="jit(f)/jvp(h.0)/mlp/tanh"),
            op("negate", 4, origin="jit(f)/jvp(h.1)/neg"),
            op("add", 5, 6, origin="jit(f)/jvp(h.1)/add"),
        ]
    )
    assert found(module) == [
        ("add", "h.0.attn", "forward", "name"),
        ("copy", "h.0.attn", "forward", "flow"),
        ("multiply", "h.0.attn", "forward", "name"),
        ("reshape", "h.0.attn", "forward", "flow"),
        ("tanh", "h.0.mlp", "forward", "name"),
        ("negate", "h.1", "forward", "name"),
        ("add", "h.1", "forward", "name"),
    ]
    assert coverage(sites(module))["name"] == 5 / 7


def test_a_guess_is_no_coverage() -> None:
    module = program(
        [
            parameter(0, 4, 4),
            op("add", 0, 0),  # read by two modules, made of none
            op("tanh", 1, origin="jit(f)/jvp(a)/tanh"),
            op("negate", 1, origin="jit(f)/jvp(b)/neg"),
            op("add", 2, 3, origin="jit(f)/jvp(b)/add"),
        ]
    )
    assert found(module)[0] == ("add", "a", "forward", "guess")
    assert coverage(sites(module))["guess"] == 1 / 4


def test_a_program_without_names_covers_nothing() -> None:
    module = program([parameter(0, 4, 4), op("add", 0, 0, origin="jit(f)/jvp()/add"), op("tanh", 1)])
    assert coverage(sites(module)) == {"name": 0.0, "flow": 0.0, "guess": 0.0, "none": 1.0}


def test_a_function_that_two_modules_call_is_part_of_both() -> None:
    gelu = Computation("gelu", (parameter(0, 4, 4), op("tanh", 0, origin="jit(gelu)/tanh")), 1)
    module = program(
        [
            parameter(0, 4, 4),
            op("call", 0, origin="jit(f)/jvp(h.0)/jit(gelu)", called=("gelu",)),
            op("call", 1, origin="jit(f)/transpose(jvp(h.1))/jit(gelu)", called=("gelu",)),
        ],
        gelu,
    )
    assert found(module) == [("tanh", "h.0", "forward", "name"), ("tanh", "h.1", "backward", "name")]


def test_names_inside_of_a_function_are_relative_to_its_call() -> None:
    layer = Computation("layer", (parameter(0, 4, 4), op("tanh", 0, origin="mlp/tanh")), 1)
    module = program(
        [parameter(0, 4, 4), op("call", 0, origin="jit(f)/jvp(h.0)/layer", called=("layer",))], layer
    )
    assert found(module) == [("tanh", "h.0.mlp", "forward", "name")]


def test_a_loop_counts_as_often_as_it_runs() -> None:
    body = Computation(
        "body", (parameter(0, 4, 4), op("tanh", 0, origin="jit(f)/while/body/jvp(h.*)/tanh")), 1
    )
    cond = Computation("cond", (parameter(0, 4, 4), op("compare", 0, 0)), 1)
    loop = Instruction("while", F, (0,), called=("cond", "body"), trips=12)
    table = parts(sites(program([parameter(0, 4, 4), loop], body, cond)))
    assert table[Part("h.*", "forward")].bytes == 12 * 64
    assert table[Part("h.*", "forward")].operations == 12


def test_dead_operations_are_no_part() -> None:
    module = program(
        [parameter(0, 4, 4), op("negate", 0, origin="jvp(x)/neg"), op("add", 0, 0, origin="jvp(y)/add")]
    )
    assert [s.part.path for s in sites(module)] == ["y"]


def test_a_transpose_inside_of_a_kernel_that_computes_is_counted_as_such() -> None:
    def fused(name: str, *opcodes: str) -> Computation:
        rows = [parameter(0, 4, 8)]
        rows += [Instruction(o, (Shape("f32", (8, 4)),), (k,)) for k, o in enumerate(opcodes)]
        return Computation(name, tuple(rows), len(rows) - 1)

    def kernel(operand: int, called: str) -> Instruction:
        return Instruction("fusion", (Shape("f32", (8, 4)),), (operand,), (called,))

    computes, moves = fused("computes", "transpose", "tanh"), fused("moves", "transpose", "copy")
    made = program([parameter(0, 4, 8), kernel(0, "computes"), kernel(1, "moves")], computes, moves)
    assert transposes(made) == (1, 128)
    assert movers(made) == (1, 128)


def fused(*instructions: Instruction) -> Computation:
    return Computation("fused", instructions, len(instructions) - 1)


def test_a_rewritten_product_is_what_the_transpose_behind_it_was_inside_of_the_next_fusion() -> None:
    """XLA gives a convolution that it rewrites no name; the transpose behind it has it, fused into the update."""
    update = "jit(step)/optimizer/mul"
    inside = fused(
        parameter(0, 4, 4),
        op("transpose", 0, origin="jit(step)/transpose(jvp(conv))/conv_general_dilated"),
        op("multiply", 1, 1, origin=update),
    )
    module = program(
        [parameter(0, 4, 4), op("convolution", 0, 0), op("fusion", 1, origin=update, called=("fused",))],
        inside,
    )
    assert [(k.part, k.how) for k in kernels(module)] == [
        (Part("conv", "backward"), "flow"),
        (Part("", "optimizer"), "name"),
    ]


def test_what_an_update_reads_plainly_is_the_updates() -> None:
    update = "jit(step)/optimizer/mul"
    inside = fused(parameter(0, 4, 4), op("multiply", 0, 0, origin=update))
    module = program(
        [parameter(0, 4, 4), op("add", 0, 0), op("fusion", 1, origin=update, called=("fused",))], inside
    )
    assert kernels(module)[0].part == Part("", "optimizer")


def test_a_kernel_is_its_largest_products() -> None:
    product = Instruction(
        "dot", F, (0, 0), detail=Dot((1,)), origin="jit(step)/transpose(jvp(fc))/dot_general"
    )
    inside = fused(parameter(0, 4, 4), product, op("multiply", 1, 1, origin="jit(step)/optimizer/mul"))
    module = program(
        [parameter(0, 4, 4), op("fusion", 0, origin="jit(step)/optimizer/mul", called=("fused",))], inside
    )
    (kernel,) = kernels(module)
    assert kernel.part == Part("fc", "backward") and kernel.shared


INNER = Computation("inner", (parameter(0, 4, 4), op("add", 0, 0), op("tanh", 1)), 2)


def test_inside_of_what_nobody_knows_nothing_is_known() -> None:
    nameless = sites(program([parameter(0, 4, 4), op("call", 0, called=("inner",))], INNER))
    assert coverage(nameless)["none"] == 1.0
    decided = program([parameter(0, 4, 4), op("conditional", 0, called=("inner",))], INNER)
    assert {k.how for k in kernels(decided)} == {"none"}


def test_inside_of_a_guess_everything_is_one() -> None:
    guessed = program(
        [
            parameter(0, 4, 4),
            op("call", 0, called=("inner",)),
            op("tanh", 1, origin="jit(f)/jvp(a)/tanh"),
            op("negate", 1, origin="jit(f)/jvp(b)/neg"),
            op("add", 2, 3, origin="jit(f)/jvp(b)/add"),
        ],
        INNER,
    )
    hows = {s.operation.opcode: s.how for s in sites(guessed) if s.home.name == "inner"}
    assert hows == {"add": "guess", "tanh": "guess"}


def nested(depth: int, twice: bool) -> Module:
    """Computations that each call the next one, once or twice."""
    end = Computation("end", (parameter(0, 4, 4), op("tanh", 0)), 1)
    calls = [
        Computation(
            f"c{k}",
            (parameter(0, 4, 4), *(op("call", at, called=(f"c{k + 1}",)) for at in range(1 + twice))),
            1 + twice,
        )
        for k in range(depth)
    ]
    last = replace(end, name=f"c{depth}")
    return program([parameter(0, 4, 4), op("call", 0, called=("c0",))], *calls, last)


def test_calls_without_end_are_refused() -> None:
    """A few hundred bytes can call any number of operations, or be nested deeper than Python is."""
    assert len(sites(nested(10, twice=True))) == 2**10
    for read in (sites, kernels):
        with pytest.raises(ProgramError, match="nested more than 200 deep"):
            read(nested(1500, twice=False))
    with pytest.raises(ProgramError, match="calls itself"):
        own = Computation("own", (parameter(0, 4, 4), op("call", 0, called=("own",))), 1)
        sites(program([parameter(0, 4, 4), op("call", 0, called=("own",))], own))


def test_calls_that_double_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detente.programs.calls.MOST", 1_000)
    with pytest.raises(ProgramError, match="more than 1,000 operations"):
        sites(nested(60, twice=True))
