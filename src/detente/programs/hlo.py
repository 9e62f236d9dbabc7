"""``HloModuleProto``, serialised, to a Module.

Field numbers from XLA's ``xla/service/hlo.proto`` and ``xla/xla_data.proto``; each is covered by a golden test on
protos that jaxlib and torch_xla wrote. Fields that are not named here are skipped.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from detente.programs.attributes import SAYING, digest_of, with_bodies
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
    Work,
)
from detente.programs.products import ragged_work
from detente.programs.wire import WireError, fields, integers, signed, text

# xla_data.proto, enum PrimitiveType.
ELEMENT = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4",
    22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3",
    29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip
TUPLE = 13
# Fields of HloInstructionProto that say how a program is named, where it came from, or how it is numbered; and
# backend_config, which of a custom call alone is what it computes.
_UNHASHED = frozenset({1, 7, 35, 36, 37, 38, 43})
# How many operands an operation has at least, where somebody counts on them.
_OPERANDS = {"dot": 2, "ragged-dot": 2, "convolution": 2, "reduce": 1, "while": 1, "gather": 2}
# How many computations it calls, where somebody counts on that.
_CALLED = {"while": 2, "call": 1, "fusion": 1}
# The bridge's own kernels (bridge/kernels), which say in their call how large they are: for each the terms of what it
# multiplies and adds, every term the product of these sizes.
CALLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "detente_matmul": (("batch", "m", "n", "k"),),
    "detente_depthwise": (("n", "out_h", "out_w", "c", "kh", "kw"),),
    "detente_depthwise_of_taps": (("n", "out_h", "out_w", "c", "kh", "kw"),),
    "detente_attention": tuple(("b", "h", "l", "s", inner) for inner in "de"),
    "detente_attention_backward": tuple(("b", "h", "l", "s", inner) for inner in "dddee"),
}
# Those that convolve say what a convolution's window does; each of its gradients meets the same pairs.
CONVOLUTION_CALLS = frozenset(f"detente_convolution{of}" for of in ("", "_of_input", "_of_kernel"))
# And those that multiply no matrices: an optimizer's update, a batch or a row that is normalised, a mask and its key.
ELEMENTWISE_CALLS = frozenset(
    {
        "detente_update", "detente_batch_norm_spread", "detente_batch_norm", "detente_batch_norm_backward",
        "detente_layer_norm", "detente_layer_norm_backward", "detente_threefry2x32_folded",
        "detente_threefry2x32_kept",
    }
)  # fmt: skip
BRIDGES = frozenset(CALLS) | CONVOLUTION_CALLS | ELEMENTWISE_CALLS
_WINDOW_OF_CALL = tuple(f"{what}{d}" for what in ("", "out_", "k", "step_", "low_", "reach_") for d in "hw")
_CONVOLVED = ("n", "o", "inner", *_WINDOW_OF_CALL)
_TRIPS = re.compile(rb'"known_trip_count":\s*\{\s*"n":\s*"?(\d+)')
_SIZE = re.compile(rb"\b(\w+) = (\d+|true)")
_LITERAL_INTEGERS = frozenset({4, 5, 6, 7})  # LiteralProto s32s, s64s, u32s, u64s


def read_hlo(data: bytes) -> Module:
    """The module in a serialised HloModuleProto; an HloProto (module in field 1) is unwrapped.

    Raises ProgramError for anything else, telling why.
    """
    try:
        return _module(_unwrapped(memoryview(data)))
    except (WireError, KeyError, IndexError) as error:
        raise ProgramError(f"not a serialised HloModuleProto ({len(data)} bytes): {error}") from error


def _unwrapped(data: memoryview) -> memoryview:
    found = {number: value for number, value in fields(data) if not isinstance(value, int)}
    # A module names its entry in field 2; an HloProto has nothing there, and its buffers in field 3.
    if 3 in found and 2 in found:
        return data
    if 1 in found and _has_computations(found[1]):
        return found[1]
    if 3 in found:
        return data
    raise ProgramError(f"not a serialised HloModuleProto: {len(data)} bytes without a computation")


def _has_computations(data: memoryview) -> bool:
    """Whether it is a module, and not a name."""
    try:
        return any(number == 3 for number, value in fields(data) if not isinstance(value, int))
    except WireError:
        return False


def _module(data: memoryview) -> Module:
    name, entry_id, aliases, computations = "", -1, [], []
    for number, value in fields(data):
        if isinstance(value, int):
            if number == 6:
                entry_id = signed(value)
        elif number == 1:
            name = text(value)
        elif number == 3:
            computations.append(_computation(value))
        elif number in (8, 18):  # input_output_alias; buffer_donor
            aliases += [v for n, v in fields(value) if n == 1 and not isinstance(v, int)]
    if not computations:
        raise ProgramError("not a serialised HloModuleProto: no computation in it")
    names = {ident: c.name for ident, c, _ in computations}
    table = {
        c.name: Computation(c.name, tuple(_named(i, names) for i in c.instructions), c.root)
        for _, c, _ in computations
    }
    table = with_bodies(table)
    entry = names.get(entry_id) or computations[-1][1].name
    digest = hashlib.sha256()
    position = {ident: k for k, (ident, _, _) in enumerate(computations)}
    for _, c, rows in computations:
        digest.update(f"#{c.root}".encode())
        for row, instruction in zip(rows, c.instructions, strict=True):
            called = [position[int(i)] for i in instruction.called]
            digest.update(row + f"{instruction.operands}{called}".encode())
    # As XLA prints it: the header and a blank line, then each computation with its braces and a blank line.
    lines = 2 + sum(len(c.instructions) + 3 for c in table.values())
    module = Module(name, table, entry, lines, 0, digest.hexdigest())
    aliased = _aliased(module, aliases)
    return Module(name, table, entry, lines, aliased, digest.hexdigest())


def _aliased(module: Module, aliases: list[memoryview]) -> int:
    """Bytes of the entry's parameters that an alias entry or a donor names."""
    donated = set()
    for alias in aliases:
        parameter, index = 0, []
        numbers = {n for n, _ in fields(alias)}
        # AliasEntryProto{output_shape_index 1, parameter_number 2, parameter_shape_index 3, kind 4};
        # BufferDonorEntryProto{parameter_number 1, parameter_shape_index 2}.
        donor = not numbers & {3, 4} and not (2 in numbers and 4 in numbers)
        for number, value in fields(alias):
            if number == (1 if donor else 2) and isinstance(value, int):
                parameter = signed(value)
            elif number == (2 if donor else 3):
                index = integers(value)
        donated.add((parameter, tuple(index)))
    parameters = module.parameters
    total = 0
    for parameter, index in donated:
        if parameter < len(parameters):
            leaves = parameters[parameter].results
            # One index into a flat tuple; deeper ones do not occur in what the stacks give away.
            total += (
                leaves[index[0]].bytes if index and index[0] < len(leaves) else sum(s.bytes for s in leaves)
            )
    return total


def _computation(data: memoryview) -> tuple[int, Computation, list[bytes]]:
    name, ident, root_id, raw = "", -1, -1, []
    for number, value in fields(data):
        if isinstance(value, int):
            if number == 5:
                ident = signed(value)
            elif number == 6:
                root_id = signed(value)
        elif number == 1:
            name = text(value)
        elif number == 2:
            raw.append(value)
    if not raw:
        raise ProgramError(f"computation {name!r} has no operation")
    parsed = [_instruction(value) for value in raw]
    where = {i: k for k, (i, _, _, _) in enumerate(parsed)}
    shapes = [p[1].results for p in parsed]
    instructions = []
    for at, (_, one, operand_ids, _) in enumerate(parsed):
        operands = tuple(where[i] for i in operand_ids)
        _check(one, at, operands)
        detail = one.detail
        if isinstance(detail, tuple):
            dimensions = _DIMENSIONS[one.opcode]
            detail = dimensions(detail, one.shape, [shapes[i][0] for i in operands])
        made = replace(one, operands=operands, detail=detail)
        _check_dimensions(made, shapes)
        instructions.append(made)
    rows = [row for _, _, _, row in parsed]
    return ident, Computation(name, tuple(instructions), where.get(root_id, len(parsed) - 1)), rows


def _check(one: Instruction, at: int, operands: tuple[int, ...]) -> None:
    """XLA writes operands in front of their readers: a program in which one reads itself has no end."""
    if any(o >= at for o in operands):
        raise ProgramError(f"{one.opcode} {one.name!r} reads what is not in front of it")
    least, calls = _OPERANDS.get(one.opcode, 0), _CALLED.get(one.opcode)
    if len(operands) < least:
        raise ProgramError(f"{one.opcode} {one.name!r} has {len(operands)} operands, and needs {least}")
    if calls is not None and len(one.called) != calls:
        raise ProgramError(
            f"{one.opcode} {one.name!r} calls {len(one.called)} computations, and has to call {calls}"
        )


def _check_dimensions(one: Instruction, shapes: list[tuple[Shape, ...]]) -> None:
    named = one.reduced if one.opcode == "reduce" else ()
    if isinstance(one.detail, Dot):
        named = (*one.detail.contracting, *one.detail.batch)
    if named:
        rank = len(shapes[one.operands[0]][0].dims)
        if not all(0 <= d < rank for d in named):
            raise ProgramError(
                f"{one.opcode} {one.name!r} names dimensions {named} of an operand that has {rank}"
            )


def _instruction(data: memoryview) -> tuple[int, Instruction, list[int], bytes]:
    """Identity, instruction (operands still open, ``called`` still ids), operand ids, and what its hash covers."""
    opcode, results, ident, number, target, name, origin = "", (), -1, 0, "", "", ""
    operand_ids: list[int] = []
    called: list[int] = []
    dimensions: list[int] = []
    literal: tuple[int, ...] = ()
    dot: Dot | None = None
    work: Work | None = None
    trips: int | None = None
    window: memoryview | None = None
    dims: memoryview | None = None
    said: list[tuple[int, int | memoryview]] = []
    ragged: memoryview | None = None
    config = b""
    row = bytearray()
    for key, value in fields(data):
        if key not in _UNHASHED:
            row += f"{key}:".encode()
            row += str(value).encode() if isinstance(value, int) else _shape_hash(key, value)
        if key in SAYING:
            said.append((key, value))
        if isinstance(value, int):
            if key == 35:
                ident = signed(value)
            elif key in (9, 13):
                number = signed(value)
            elif key == 36:
                operand_ids.append(signed(value))
            elif key == 38:
                called.append(signed(value))
            elif key == 14:
                dimensions.append(signed(value))
        elif key == 1:
            name = text(value)
        elif key == 2:
            opcode = text(value)
        elif key == 7:  # OpMetadata{op_type 1, op_name 2, source_file 3, source_line 4}
            origin = next((text(v) for n, v in fields(value) if n == 2), "")
        elif key == 3:
            results = tuple(_shapes(value))
        elif key == 8:
            literal = _literal(value)
        elif key == 14:
            dimensions += integers(value)
        elif key == 15:
            window = value
        elif key == 16:
            dims = value
        elif key in (28, 63):
            target = text(value)
        elif key == 43:
            config = bytes(value)
        elif key == 30:
            dot = _dot(value)
        elif key == 90:
            ragged = value
        elif key == 36:
            operand_ids += integers(value)
        elif key == 38:
            called += integers(value)
    if opcode == "while":
        known = _TRIPS.search(config)
        trips = int(known[1]) if known else None
    if opcode == "custom-call":
        work = _called(target, config)
        # A call of Python back has an address, or a place in a list of this process, which says nothing of what it is.
        row += b"" if calls_back(target) else b"43:" + config
    detail: object = dot or work
    if opcode == "convolution":
        detail = (window, dims)
    if opcode == "ragged-dot":
        detail = (ragged,)
    one = Instruction(
        opcode=opcode,
        results=results,
        called=tuple(str(c) for c in called),
        number=number,
        integers=literal,
        detail=detail,  # type: ignore[arg-type]  # what is raw becomes a count once operands are known
        target=target,
        reduced=tuple(dimensions) if opcode in ("reduce", "reduce-window") else (),
        trips=trips,
        name=name,
        origin=origin,
        dimensions=tuple(dimensions),
        attributes=digest_of(opcode, said, target),
    )
    return ident, one, operand_ids, bytes(row)


def calls_back(target: str) -> bool:
    """Whether a custom call runs a Python function of the process that made the program: what it computes is not in it.

    >>> calls_back("xla_ffi_python_cpu_callback"), calls_back("__cudnn$fmhaSoftmax")
    (True, False)
    """
    return "_python_" in target and "callback" in target


def _called(target: str, config: bytes) -> Work | None:
    """From its ``backend_config``; None where that is written in another way."""
    said = {name.decode(): number for name, number in _SIZE.findall(config)}
    terms = (_CONVOLVED,) if target in CONVOLUTION_CALLS else CALLS.get(target, ())
    if not terms or not all(size in said for term in terms for size in term):
        return None
    if target in CONVOLUTION_CALLS:
        size = {name: int(said[name]) for name in _CONVOLVED}
        spatial = (
            Spatial(
                size=size[f"k{d}"],
                input=size[d],
                output=size[f"out_{d}"],
                stride=size[f"step_{d}"],
                low=size[f"low_{d}"],
                window_dilation=size[f"reach_{d}"],
            )
            for d in "hw"
        )
        return Work(2 * size["n"] * size["o"] * size["inner"] * math.prod(map(meetings, spatial)))
    half = said.get("causal") == b"true"  # a row sees the columns up to its own
    return Work(2 * sum(math.prod(int(said[size]) for size in term) for term in terms) // (2 if half else 1))


def _shape_hash(key: int, value: memoryview) -> bytes:
    # A shape's layout may be filled in or not for the same program; dtype and dimensions are what it computes.
    return repr([(s.dtype, s.dims) for s in _shapes(value)]).encode() if key == 3 else bytes(value)


def _named(one: Instruction, names: dict[int, str]) -> Instruction:
    if not one.called:
        return one
    called = tuple(names[int(c)] for c in one.called)
    if one.opcode == "while":
        # HLO keeps body before condition; Module promises condition before body.
        called = called[::-1]
    return replace(one, called=called)


def _shapes(data: memoryview) -> Iterator[Shape]:
    kind, dims, parts = 0, [], []
    for number, value in fields(data):
        if number == 2 and isinstance(value, int):
            kind = value
        elif number == 3:
            dims += integers(value)
        elif number == 4 and not isinstance(value, int):
            parts.append(value)
    if kind == TUPLE:
        for part in parts:
            yield from _shapes(part)
    else:
        yield Shape(ELEMENT.get(kind, f"type{kind}"), tuple(dims))


def _literal(data: memoryview) -> tuple[int, ...]:
    found: list[int] = []
    for number, value in fields(data):
        if number in _LITERAL_INTEGERS and (isinstance(value, int) or len(value) <= 160):
            found += integers(value)
    return tuple(found) if len(found) <= 16 else ()


def _dot(data: memoryview) -> Dot:
    # DotDimensionNumbers{contracting dimensions of left 1 and right 2, batch dimensions 3 and 4}.
    parts: dict[int, list[int]] = {1: [], 2: [], 3: [], 4: []}
    for number, value in fields(data):
        if number in parts:
            parts[number] += integers(value)
    return Dot(tuple(parts[1]), tuple(parts[3]), tuple(parts[2]), tuple(parts[4]))


def _ragged(raw: tuple[memoryview | None], out: Shape, operands: list[Shape]) -> Work:
    """RaggedDotDimensionNumbers{dot 1, lhs_ragged 2, rhs_group 3}; DotDimensionNumbers{lhs_contracting 1,
    rhs_contracting 2, lhs_batch 3, rhs_batch 4}."""
    found: dict[int, list[int]] = {}
    for number, value in fields(raw[0] if raw[0] is not None else memoryview(b"")):
        if number == 3:
            found.setdefault(0, []).extend(integers(value))
        elif number == 1 and not isinstance(value, int):
            for inner, dims in fields(value):
                found.setdefault(inner, []).extend(integers(dims))
    taken = {*found.get(0, ()), *found.get(2, ()), *found.get(4, ())}
    return ragged_work(operands[0], operands[1], taken)


def _convolution(
    raw: tuple[memoryview | None, memoryview | None], out: Shape, operands: list[Shape]
) -> Convolution:
    """ConvolutionDimensionNumbers: kernel input / output feature 3 / 4, kernel spatial 6, input spatial 11, output
    batch 9, feature 10, spatial 12. Absent numbers are 0, as proto3 leaves a zero out."""
    window, dims = raw
    where: dict[int, list[int]] = {}
    for number, value in fields(dims if dims is not None else memoryview(b"")):
        where.setdefault(number, []).extend(integers(value))
    source, kernel = operands[0], operands[1]
    windows = [w for n, w in fields(window or memoryview(b"")) if n == 1 and not isinstance(w, int)]
    spatial = []
    for k, one in enumerate(windows):
        found = {n: signed(v) for n, v in fields(one) if isinstance(v, int)}
        spatial.append(
            Spatial(
                size=found.get(1, 1),
                input=source.dims[where[11][k]],
                output=out.dims[where[12][k]],
                stride=found.get(2, 1),
                low=found.get(3, 0),
                window_dilation=found.get(5, 1),
                base_dilation=found.get(6, 1),
            )
        )
    first = {n: where.get(n, [0])[0] for n in (3, 9, 10)}
    return Convolution(
        tuple(spatial),
        batch=out.dims[first[9]],
        out_features=out.dims[first[10]],
        in_features=kernel.dims[first[3]],
    )


# What says how a product's dimensions meet -> what is counted, once the operands are known.
_DIMENSIONS: dict[str, Callable[[Any, Shape, list[Shape]], Convolution | Work]] = {
    "convolution": _convolution,
    "ragged-dot": _ragged,
}
