"""A program as nouns: what every reader fills and every count reads. In HLO's words, whatever it was written in."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Bits per element. Tokens and opaques have no size.
BITS: dict[str, int] = {
    "pred": 8, "s1": 1, "s2": 2, "s4": 4, "s8": 8, "s16": 16, "s32": 32, "s64": 64,
    "u1": 1, "u2": 2, "u4": 4, "u8": 8, "u16": 16, "u32": 32, "u64": 64,
    "f4e2m1fn": 4, "f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8,
    "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip


class ProgramError(ValueError):
    """A program that cannot be read. The message says what was expected and where."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An array's dtype (``f32``, ``s64``, ``pred``, ``token``) and dimensions."""

    dtype: str
    dims: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of the data; 0 for tokens and opaques."""
        return (self.elements * BITS.get(self.dtype, 0) + 7) // 8


@dataclass(frozen=True, slots=True)
class Spatial:
    """One spatial dimension of a convolution: ``size`` of the window, of the ``input`` and of the ``output``."""

    size: int
    input: int
    output: int
    stride: int = 1
    low: int = 0
    window_dilation: int = 1
    base_dilation: int = 1


@dataclass(frozen=True, slots=True)
class Dot:
    """What a product contracts and over what it is batched, as dimension numbers of its left operand; ``right`` and
    ``right_batch`` those of its right one, in the same order, where the form has them."""

    contracting: tuple[int, ...]
    batch: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    right_batch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Convolution:
    """What a convolution needs for its count; features are numbers of channels, per group for the kernel's input."""

    spatial: tuple[Spatial, ...]
    batch: int
    out_features: int
    in_features: int


@dataclass(frozen=True, slots=True)
class Work:
    """The floating-point operations of a product, where its framework counted them itself."""

    flops: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation.

    opcode     HLO's spelling: ``dot``, ``batch-norm-training``, ``get-tuple-element``
    results    the arrays it returns, tuples flattened
    operands   positions in the same computation
    called     names of the computations it calls, condition before body for ``while``
    number     parameter number, or tuple index
    integers   the value, of an integer constant with at most 16 elements
    detail     a Dot, a Convolution or a Work
    target     of a custom call; the direction of a comparison; what a StableHLO ``reduce`` applies, where it says so
    reduced    dimensions that a ``reduce`` removes
    dimensions the numbers that an HLO operation has: a transpose's, a broadcast's, along which it concatenates
    attributes what else it says of itself, as a digest (programs/attributes.py)
    trips      of a ``while`` whose program says so outright (an optimised one does)
    splat      a constant that is written as one value for all of its elements
    name       what the program calls it, where the form keeps names; a profile's events are joined by it
    origin     what a framework wrote down of where it comes from (``op_name``; programs/scope.py reads it)
    """

    opcode: str
    results: tuple[Shape, ...]
    operands: tuple[int, ...] = ()
    called: tuple[str, ...] = ()
    number: int = 0
    integers: tuple[int, ...] = ()
    detail: Dot | Convolution | Work | None = None
    target: str = ""
    reduced: tuple[int, ...] = ()
    splat: bool = False
    trips: int | None = None
    name: str = ""
    origin: str = ""
    dimensions: tuple[int, ...] = ()
    attributes: str = ""

    @property
    def shape(self) -> Shape:
        """The first array that it returns; a token when it returns none."""
        return self.results[0] if self.results else Shape("token")


@dataclass(frozen=True)
class Computation:
    """A list of instructions; ``root`` is the position of the one whose value it returns."""

    name: str
    instructions: tuple[Instruction, ...]
    root: int


@dataclass(frozen=True)
class Module:
    """A whole program.

    lines     lines of its text, as far as the form has one
    aliased   bytes of arguments whose buffer an output may take (donation)
    sha256    over everything but names, locations, layouts and metadata: equal when the programs are. What a call of
              Python back computes is in no program, and not in it
    """

    name: str
    computations: dict[str, Computation]
    entry: str
    lines: int
    aliased: int
    sha256: str

    @property
    def parameters(self) -> list[Instruction]:
        """The entry's parameters in order."""
        found = [i for i in self.computations[self.entry].instructions if i.opcode == "parameter"]
        return sorted(found, key=lambda i: i.number)

    @property
    def root(self) -> Instruction:
        entry = self.computations[self.entry]
        return entry.instructions[entry.root]
