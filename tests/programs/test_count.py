"""What counting must see: faults planted in real programs, and arithmetic checked by brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detente.programs.count import count, count_program, read_program
from detente.programs.difference import difference
from detente.programs.hlo import read_hlo
from detente.programs.kinds import kinds_of
from detente.programs.meetings import meetings
from detente.programs.module import (
    Computation,
    Convolution,
    Dot,
    Instruction,
    Module,
    ProgramError,
    Shape,
    Spatial,
)
from detente.programs.parts import kernels, sites

from .build import appended, parameter, program
from .test_golden import golden
from .test_xplane import held, number, varint
from .written_hlo import computation, instruction, module, shape

F32 = Shape("f32", (8, 64))


@pytest.mark.parametrize("stack", ["jax", "torch-xla", "jax-scan"])
def test_a_program_does_not_differ_from_itself(stack: str) -> None:
    data = golden(stack, "hlo")
    assert difference(count_program(data, "hlo"), count_program(data, "hlo")) == ()


@pytest.mark.parametrize("stack", ["jax", "torch-xla"])
def test_a_doubled_layer_norm_shows(stack: str) -> None:
    module = read_hlo(golden(stack, "hlo"))
    entry = module.computations[module.entry]
    (at, *_) = [
        k for k, i in enumerate(entry.instructions) if i.opcode in ("rsqrt", "batch-norm-training")
    ] or [-1]
    if at < 0:
        pytest.fail("the golden program has no LayerNorm in its entry")
    doubled = appended(module, [entry.instructions[at]])
    found = {d.what for d in difference(count(module), count(doubled))}
    assert found & {"norms.expanded", "norms.batch-norm-training"}


def test_a_cast_to_s64_shows() -> None:
    module = read_hlo(golden("jax", "hlo"))
    cast = appended(module, [Instruction("convert", (Shape("s64", (2, 16)),), (0,))])
    assert {(d.what, d.a, d.b) for d in difference(count(module), count(cast))} >= {
        ("dtypes.s64", 0, 1),
        ("opcodes.convert", count(module).opcodes["convert"], count(module).opcodes["convert"] + 1),
    }


def test_a_missing_donation_shows() -> None:
    module = read_hlo(golden("jax", "hlo"))
    found = difference(count(module), count(replace(module, aliased=0)))
    assert [(d.what, d.a, d.b) for d in found] == [("alias_bytes", 1422340, 0)]


def test_captured_weights_show_as_large_constants() -> None:
    module = program([parameter(0, 4), Instruction("constant", (Shape("f32", (1024, 1024)),)),
                      Instruction("tuple", (), (0, 1))])  # fmt: skip
    c = count(module)
    assert (c.constants_bytes, c.large_constants) == (4 << 20, (4 << 20,))


def test_what_nobody_reads_is_no_work() -> None:
    dot = Instruction("dot", (Shape("f32", (2, 4)),), (0, 1), detail=Dot((1,)))
    module = program(
        [parameter(0, 2, 3), parameter(1, 3, 4), dot, Instruction("negate", (Shape("f32", (2, 3)),), (0,))]
    )
    c = count(module)
    assert (c.flops, c.products, c.dead) == (0, 0, 1)


@pytest.mark.parametrize(
    ("one", "sees"),
    [
        (Instruction("rng-bit-generator", (Shape("u32", (4,)),), (0,)), 1),
        (Instruction("custom-call", (F32,), (0,), target="cu_threefry2x32"), 1),
        (Instruction("custom-call", (F32,), (0,), target="Sharding"), 0),
    ],
)
def test_random_operations(one: Instruction, sees: int) -> None:
    assert count(program([parameter(0, 4), one])).rng_ops == sees


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2), st.lists(st.integers(1, 4), min_size=5, max_size=5), st.sampled_from(["f32", "bf16"])
)
def test_a_products_flops(batched: int, extents: list[int], dtype: str) -> None:
    """Against the number of multiplications that einsum would do: the product of all extents."""
    *batch, m, k, n = extents[2 - batched :]
    lead = tuple(range(batched))
    module = program(
        [parameter(0, *batch, m, k, dtype=dtype), parameter(1, *batch, k, n, dtype=dtype),
         Instruction("dot", (Shape("f32", (*batch, m, n)),), (0, 1), detail=Dot((batched + 1,), lead))]
    )  # fmt: skip
    c = count(module)
    assert c.flops == 2 * int(np.prod([*batch, m, k, n]))
    assert c.product_dtypes == {dtype: 1}


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 2),
    st.integers(1, 3),
)
def test_meetings_by_brute_force(
    size: int, width: int, stride: int, low: int, window: int, base: int
) -> None:
    """Lay the dilated, padded input out as an array of ones and zeros, and slide the window over it."""
    line = np.zeros((width - 1) * base + 1, int)
    line[::base] = 1
    reach = (size - 1) * window + 1
    line = np.pad(line, (low, 6))
    if len(line) < reach:
        return
    out = (len(line) - reach) // stride + 1
    met = sum(int(line[o * stride + t * window]) for o in range(out) for t in range(size))
    assert meetings(Spatial(size, width, out, stride, low, window, base)) == met


def test_a_convolution_and_its_gradients_cost_the_same() -> None:
    """A strided convolution (8 -> 4, window 3, padding 1 above only) and its two gradients as XLA writes them."""
    forward = Convolution((Spatial(3, 8, 4, stride=2, low=0),), 2, 5, 3)
    data = Convolution((Spatial(3, 4, 8, low=2, base_dilation=2),), 2, 3, 5)
    kernel = Convolution((Spatial(4, 8, 3, low=0, window_dilation=2),), 3, 5, 2)

    def flops(c: Convolution) -> int:
        shape = Shape("f32", (1,))
        return count(program([parameter(0, 1), Instruction("convolution", (shape,), (0, 0), detail=c)])).flops

    assert flops(forward) == flops(data) == flops(kernel) == 2 * 2 * 5 * 3 * 11


@pytest.mark.parametrize(
    ("start", "limit", "step", "way", "trips"),
    [(0, 12, 1, "LT", 12), (0, 12, 5, "LT", 3), (1, 12, 1, "LE", 12), (12, 0, -1, "GT", 12), (3, 3, 1, "LT", 0),
     (0, 12, 3, "NE", 4), (0, 12, -1, "LT", None), (5, 0, -2, "GE", 3)],
)  # fmt: skip
def test_trip_counts(start: int, limit: int, step: int, way: str, trips: int | None) -> None:
    s32 = Shape("s32")
    state = Instruction("parameter", (s32, F32))

    def number(value: int) -> Instruction:
        return Instruction("constant", (s32,), integers=(value,))

    counter = Instruction("get-tuple-element", (s32,), (0,), number=0)
    condition = Computation(
        "condition",
        (state, counter, number(limit), Instruction("compare", (Shape("pred"),), (1, 2), target=way)),
        3,
    )
    body = Computation(
        "body",
        (state, counter, number(step), Instruction("add", (s32,), (1, 2)),
         Instruction("get-tuple-element", (F32,), (0,), number=1),
         Instruction("dot", (F32,), (4, 4), detail=Dot((1,))), Instruction("tuple", (s32, F32), (3, 5))), 6,
    )  # fmt: skip
    loop = Instruction("while", (s32, F32), (2,), ("condition", "body"))
    module = program([parameter(0, 8, 64), number(start), Instruction("tuple", (s32, F32), (1, 0)), loop],
                     condition, body)  # fmt: skip
    c = count(module)
    assert [found.trips for found in c.loops] == [trips]
    assert c.unknown_loops == (trips is None)
    # A loop that nobody can count is counted once: a lower bound, and ``unknown_loops`` says so.
    assert c.flops == (1 if trips is None else trips) * 2 * 8 * 64 * 64


def test_broken_programs_are_refused() -> None:
    for data in (b"", b"\x01\x02\x03", b"hello, world", golden("jax", "hlo")[:5000]):
        with pytest.raises(ProgramError, match="HloModuleProto"):
            read_program(data, "hlo")
    with pytest.raises(ProgramError, match="no function @main"):
        read_program(b"module @m {\n}\n", "stablehlo")
    with pytest.raises(ProgramError, match="StableHLO line 3"):
        read_program(
            b"module @m {\nfunc.func @main(%a: tensor<2xf32>) {\n%1 = stablehlo.add %9, %9 : tensor<2xf32>",
            "stablehlo",
        )
    with pytest.raises(ProgramError, match="'fx' cannot be counted"):
        read_program(b"", "fx")


def test_a_program_that_calls_itself_is_refused() -> None:
    call = Instruction("call", (F32,), (0,), ("main",))
    with pytest.raises(ProgramError, match="calls itself"):
        count(program([parameter(0, 8, 64), call]))


def test_names_and_places_do_not_change_the_hash() -> None:
    one = read_hlo(golden("jax", "hlo"))
    assert one.sha256 != read_hlo(golden("jax-scan", "hlo")).sha256
    data = golden("jax", "hlo").replace(b"jit_train", b"jit_trail")
    assert read_hlo(data).sha256 == one.sha256


def test_products_are_told_by_their_flops_too() -> None:
    """One product of integers of two is half of them by number, and a hundredth of what is computed."""
    large = Instruction("dot", (Shape("f32", (64, 64)),), (0, 1), detail=Dot((1,)))
    small = Instruction("dot", (Shape("s32", (4, 4)),), (2, 3), detail=Dot((1,)))
    given = [parameter(0, 64, 64), parameter(1, 64, 64), parameter(2, 4, 4, dtype="s32")]
    given.append(parameter(3, 4, 4, dtype="s32"))
    c = count(program([*given, large, small, Instruction("tuple", (), (4, 5))]))
    assert c.product_dtypes == {"f32": 1, "s32": 1}
    assert c.product_flops == {"f32": 2 * 64**3, "s32": 2 * 4**3} and c.flops == sum(c.product_flops.values())


@pytest.mark.parametrize(
    ("name", "value", "sees"),
    [
        ("random_features", 7, 0),
        ("nothing", 0x1BD11BDA, 1),
        ("nothing", 0xD2511F53, 1),
        ("rng_of_mine", 1, 0),
    ],
)
def test_what_draws_is_known_by_what_it_does_and_not_by_its_name(name: str, value: int, sees: int) -> None:
    word = Shape("u32")
    inner = Computation(
        name,
        (
            Instruction("parameter", (word,)),
            Instruction("constant", (word,), integers=(value,)),
            Instruction("xor", (word,), (0, 1)),
        ),
        2,
    )
    call = Instruction("call", (word,), (0,), called=(name,))
    main = Computation("main", (Instruction("parameter", (word,)), call, call), 2)
    module = Module("m", {"main": main, name: inner}, "main", 1, 0, "")
    assert count(module).rng_ops == 2 * sees, "once for each call"


def test_jaxs_own_numbers_are_seen_under_any_name_and_a_function_called_random_draws_none() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")

    def counted(function: Any) -> list[int]:
        lowered = jax.jit(function).lower(jax.numpy.ones((4, 4)), jax.numpy.int32(3))
        proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
        compiled = lowered.compile().runtime_executable().hlo_modules()[0]
        return [
            count_program(proto, "hlo").rng_ops,
            count_program(lowered.as_text().encode(), "stablehlo").rng_ops,
            count_program(compiled.as_serialized_hlo_module_proto(), "hlo-optimised").rng_ops,
        ]

    @jax.jit
    def random_features(x: Any) -> Any:
        return jax.numpy.cos(x @ x)

    def called(x: Any, seed: Any) -> Any:
        return random_features(x) + seed

    def quiet(x: Any, seed: Any) -> Any:
        return x + jax.random.normal(jax.random.key(seed), x.shape)

    def by_bits(x: Any, seed: Any) -> Any:
        return x + jax.random.uniform(jax.random.key(seed, impl="rbg"), x.shape)

    assert counted(called) == [0, 0, 0]
    assert all(n > 0 for n in counted(quiet)), counted(quiet)
    assert all(n > 0 for n in counted(by_bits)[:2]), counted(by_bits)


def test_what_a_program_reads_stands_in_front_of_it() -> None:
    """190 bytes whose condition is a copy of itself were followed for ever."""
    loop = instruction(2, "while", 1, called=(3, 2))
    entry = computation(1, instruction(1, "parameter"), loop)
    circle = computation(
        2, instruction(10, "copy", 10), instruction(11, "compare", 10, 10, of=shape(dtype="pred"))
    )
    data = module(entry, circle, computation(3, instruction(20, "parameter")))
    with pytest.raises(ProgramError, match="reads what is not in front of it"):
        read_hlo(data)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([instruction(2, "dot", 1)], "has 1 operands, and needs 2"),
        ([instruction(2, "dot", 1, 1, more=held(30, number(1, 9)))], r"dimensions \(9,\) of an operand that has 2"),
        ([instruction(2, "reduce", 1, more=number(14, 7))], "names dimensions"),
        ([instruction(2, "while", 1, called=(1,))], "calls 1 computations, and has to call 2"),
        ([instruction(2, "fusion", 1)], "calls 0 computations"),
    ],
)  # fmt: skip
def test_an_operation_that_is_none_is_refused(rows: list[bytes], said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        read_hlo(module(computation(1, instruction(1, "parameter"), *rows)))


def test_a_computation_without_an_operation_is_refused() -> None:
    empty = held(3, held(1, b"empty") + number(5, 2))
    with pytest.raises(ProgramError, match="computation 'empty' has no operation"):
        read_hlo(module(computation(1, instruction(1, "parameter")), empty))


def test_a_window_of_any_size_is_counted() -> None:
    """110 bytes once asked for 2 to the 40th taps."""
    window = held(15, held(1, number(1, 1 << 40))) + held(16, held(11, varint(2)) + held(12, varint(2)))
    rows = [
        instruction(1, "parameter", of=shape(1, 1, 4)),
        instruction(2, "convolution", 1, 1, of=shape(1, 1, 4), more=window),
    ]
    assert count(read_hlo(module(computation(1, *rows)))).flops == 2 * 10


@pytest.mark.parametrize("opcode", ["call", "while"])
def test_calls_that_double_are_refused(opcode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty functions of two calls each, which hold nothing else, would be entered 2 to the 60th times."""
    monkeypatch.setattr("detente.programs.calls.MOST", 1_000)

    def entered(k: int) -> Instruction:
        called = (f"c{k}",) if opcode == "call" else ("end", f"c{k}")
        return Instruction(opcode, (F32,), (0,), called, trips=1)

    def twice(k: int) -> Computation:
        return Computation(f"c{k}", (parameter(0, 4), entered(k + 1), entered(k + 1)), 2)

    ends = (Computation(name, (parameter(0, 4),), 0) for name in ("c60", "end"))
    whole = program([parameter(0, 4), entered(0)], *map(twice, range(60)), *ends)
    for walk in (count, sites, kernels):
        with pytest.raises(ProgramError, match="more than 1,000 operations"):
            walk(whole)
    if opcode == "while":
        return
    # What kind of work it is needs each of them once.
    named = replace(whole.root, name="call.1")
    entry = Computation("main", (parameter(0, 4), named), 1)
    assert kinds_of(replace(whole, computations={**whole.computations, "main": entry}))["call.1"] == "copies"


def test_a_norm_is_found_among_many_operands() -> None:
    """Fourteen sums of a hundred operands each were walked path by path."""
    rows = [parameter(0, 8, 64), Instruction("reduce", (Shape("f32", (8,)),), (0,), reduced=(1,))]
    rows += [Instruction("tanh", (F32,), (0,))]
    for k in range(12):
        rows.append(Instruction("add", (F32,), (*(len(rows) - 1,) * 100, 1 if k == 0 else 2)))
    assert count(program([*rows, Instruction("rsqrt", (F32,), (len(rows) - 1,))])).norms == {"expanded": 1}
    assert count(program([*rows[:3], *rows[4:], Instruction("rsqrt", (F32,), (2,))])).norms == {}


RAGGED = [
    # Which dimension is ragged: the rows, what is contracted, the batch; and the groups of the first alone are counted.
    ((11, 5), (3, 5, 7), (11, 7), {1: [1], 2: [1]}, [0]),
    ((11, 5), (5, 7), (3, 11, 7), {1: [1], 2: [0]}, []),
    ((3, 11, 5), (3, 5, 7), (3, 11, 7), {1: [2], 2: [1], 3: [0], 4: [0]}, []),
]
_TEXT_NAMES = {1: "lhs_contracting_dimensions", 2: "rhs_contracting_dimensions", 3: "lhs_batching_dimensions",
               4: "rhs_batching_dimensions"}  # fmt: skip


@pytest.mark.parametrize(("left", "right", "out", "numbers", "groups"), RAGGED)
def test_a_ragged_product_multiplies_every_row_with_one_group(left, right, out, numbers, groups) -> None:
    dims = held(1, b"".join(held(key, b"".join(map(varint, ds))) for key, ds in numbers.items()))
    dims += held(3, b"".join(map(varint, groups)))
    rows = [
        instruction(1, "parameter", of=shape(*left)),
        instruction(2, "parameter", of=shape(*right), more=number(9, 1)),
        instruction(3, "parameter", of=shape(3, dtype="s32"), more=number(9, 2)),
        instruction(4, "ragged-dot", 1, 2, 3, of=shape(*out), more=held(90, dims)),
    ]
    of_proto = count(read_hlo(module(computation(1, *rows))))

    def tensor(dims, kind="f32") -> str:
        return f"tensor<{'x'.join(map(str, dims))}x{kind}>"

    said = ", ".join(f"{_TEXT_NAMES[key]} = {ds}" for key, ds in numbers.items())
    kinds = (tensor(left), tensor(right), tensor((3,), "i32"))
    whole = f"({', '.join(kinds)}) -> {tensor(out)}"
    given = ", ".join(f"%arg{k}: {kind}" for k, kind in enumerate(kinds))
    numbered = f"#chlo.ragged_dot<{said}, rhs_group_dimensions = {groups}>"
    text = f"""module @m {{
  func.func public @main({given}) -> {tensor(out)} {{
    %0 = "chlo.ragged_dot"(%arg0, %arg1, %arg2) <{{ragged_dot_dimension_numbers = {numbered}}}> : {whole}
    return %0 : {tensor(out)}
  }}
}}"""
    of_text = count(read_program(text.encode(), "stablehlo"))
    assert of_proto.flops == of_text.flops == 2 * 11 * 5 * 7 * (3 if 3 in numbers else 1)
    assert of_proto.products == of_text.products == 1


def test_what_is_written_in_a_string_is_no_value() -> None:
    """An attribute that names a value (``"%in"``) was read as an operand, and the program as broken."""
    given = r'backend_config = "a %in, \"%out\"", mhlo.frontend_attributes = {k = "%1"}'
    text = f"""module @m {{
  func.func public @main(%arg0: tensor<4xf32> {{jax.arg_info = "%x: tensor<2xf32>"}}) -> tensor<4xf32> {{
    %0 = stablehlo.custom_call @f(%arg0) {{{given}}} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }}
}}"""
    found = read_program(text.encode(), "stablehlo")
    assert [p.shape for p in found.parameters] == [Shape("f32", (4,))]
    (call,) = [i for i in found.computations["main"].instructions if i.opcode == "custom-call"]
    assert (call.operands, call.target) == ((0,), "f")


@pytest.mark.parametrize("line", ["cond {", "}) : () -> ()", "} do {", "}, {"])
def test_a_region_that_nothing_opened_is_told(line: str) -> None:
    text = f"module @m {{\nfunc.func @main(%a: tensor<2xf32>) {{\n{line}\n"
    with pytest.raises(ProgramError, match="StableHLO line 3"):
        read_program(text.encode(), "stablehlo")
