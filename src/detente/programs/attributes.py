"""What an HLO operation says beside its operands, shapes and dimension numbers, as a digest: a constant's value, the
bounds of a slice, the padding, how indices are read, what a reduction applies. Two operations of one opcode whose
digests differ do different things. What a compiler is only told as a hint, and where something came from, is in none;
nor is the precision that a product asks for: what it computes with on a device no program says, and the referee probes
it.

Field numbers from XLA's ``xla/service/hlo.proto`` and ``xla/xla_data.proto``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from detente.programs.module import Computation, Instruction
from detente.programs.wire import fields

_LITERAL, _WINDOW, _CONFIG, _FEATURE_GROUPS, _BATCH_GROUPS = 8, 15, 43, 50, 58
# Fields of HloInstructionProto: literal 8, window 15, slice_dimensions 17, exponent and mantissa bits 18 and 19,
# dynamic_slice_sizes 20, padding_config 21, distribution 23, epsilon 24, feature_index 25, FFT type and length 31 and
# 32, gather 33 and 34, backend_config 43 (of a custom call), scatter 48, feature groups 50, batch groups 58, triangular
# solve 59, is_stable 60, Cholesky 62, delta 66, RNG algorithm 70, top-k 81 and 85, ragged dot 90.
SAYING = frozenset(
    {
        _LITERAL, _WINDOW, 17, 18, 19, 20, 21, 23, 24, 25, 31, 32, 33, 34, _CONFIG, 48, _FEATURE_GROUPS, _BATCH_GROUPS,
        59, 60, 62, 66, 70, 81, 85, 90,
    }
)  # fmt: skip
# They apply the computation that they call to numbers, one by one.
_APPLYING = frozenset(
    {"reduce", "reduce-window", "select-and-scatter", "scatter", "sort", "map", "all-reduce", "reduce-scatter"}
)  # fmt: skip


def digest_of(opcode: str, said: Sequence[tuple[int, int | memoryview]], target: str = "") -> str:
    """Of an instruction's fields in ``SAYING``; empty where they say nothing. ``target``: of a custom call.

    >>> digest_of("convolution", [(50, 1)])
    ''
    """
    # A call of Python back is configured with an address, or a place in a list of one process.
    skipped = _CONFIG if "callback" in target else None
    told = [
        f"{key}:".encode() + one for key, value in said if key != skipped for one in _told(opcode, key, value)
    ]
    return hashlib.blake2b(b";".join(told), digest_size=8).hexdigest() if told else ""


def _told(opcode: str, key: int, value: int | memoryview) -> Iterator[bytes]:
    if isinstance(value, int):
        # One group is what there is where nobody speaks of groups.
        if key not in (_FEATURE_GROUPS, _BATCH_GROUPS) or value > 1:
            yield str(value).encode()
    elif key == _LITERAL:
        # LiteralProto{shape 1, ...}: its layout may be written down or not, and the instruction has the dimensions.
        yield from (f"{n}=".encode() + _bytes(v) for n, v in fields(value) if n != 1)
    elif key == _WINDOW and opcode == "convolution":
        # Sizes, strides and padding are in its detail; WindowDimension{window_reversal 7}.
        turned = [bool(dict(fields(w)).get(7)) for n, w in fields(value) if n == 1 and not isinstance(w, int)]
        if any(turned):
            yield repr(turned).encode()
    elif key != _CONFIG or opcode == "custom-call":
        yield bytes(value)


def _bytes(value: int | memoryview) -> bytes:
    return str(value).encode() if isinstance(value, int) else bytes(value)


def with_bodies(computations: Mapping[str, Computation]) -> dict[str, Computation]:
    """The same, where what a reduction, a scatter or a sort applies is part of what it says."""
    return {
        name: replace(home, instructions=tuple(_with_body(one, computations) for one in home.instructions))
        for name, home in computations.items()
    }


def _with_body(one: Instruction, computations: Mapping[str, Computation]) -> Instruction:
    if one.opcode not in _APPLYING:
        return one
    applied = [
        (i.opcode, i.target, i.attributes, i.operands, i.number, i.integers, i.shape.dtype)
        for name in one.called
        for i in computations[name].instructions
    ]
    text = f"{one.attributes}{applied}".encode()
    return replace(one, attributes=hashlib.blake2b(text, digest_size=8).hexdigest())
