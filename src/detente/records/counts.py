"""What was counted in a captured program."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Loop:
    """A ``while``: the computation it runs and how often, None where the program does not say."""

    body: str
    trips: int | None


@dataclass(frozen=True)
class Counts:
    """A program in numbers. Calls are expanded wherever a count says *operations*, and what nothing reads counts
    only in ``lines``, ``instructions`` and ``dead``.

    form, name          as in records/program.py
    lines               of its text; for an HLO proto the lines that its text would have
    instructions        everything written in it: parameters, constants, and the bodies of reductions too
    dead                operations whose result nothing reads; every compiler drops them
    operations          what is left without parameters, constants, tuples and the scalar bodies of reductions;
                        a loop's body counts once
    opcodes             operations by HLO opcode, plumbing included (so that its share can be seen)
    dtypes              operations by the dtype of their first result
    products            dots and convolutions, a loop's body once
    product_dtypes      the same by operand dtype (``f32``, or ``bf16xf32`` where they differ); ``product_flops``:
                        theirs, a loop's body as often as it runs
    flops               of all products, multiply and add apart, a loop's body as often as it runs
    constants_bytes     of all constants, one written as a single value counting once; ``large_constants`` lists
                        those above 1 MB, each
    argument_bytes      of the entry's parameters; ``output_bytes`` of its result
    alias_bytes         of parameters whose buffer an output may take (donation), as far as the program says
    rng_ops             random-number operations, by what they do and not by what they are called (programs/draws.py)
    loops               every loop; ``unknown_loops`` of them have no known count, so ``flops`` is a lower bound
    custom_calls        by target
    norms               LayerNorms and other normalisations by the form they are written in (programs/layer_norm.py),
                        a loop's body as often as it runs
    narrow_sums         terms of the longest sum that is added in half precision, by that dtype (programs/sums.py)
    hash                equal exactly when the programs are, names and source locations aside
    """

    form: str
    name: str
    lines: int
    instructions: int
    dead: int
    operations: int
    opcodes: dict[str, int]
    dtypes: dict[str, int]
    products: int
    product_dtypes: dict[str, int]
    flops: int
    constants_bytes: int
    large_constants: tuple[int, ...]
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    rng_ops: int
    loops: tuple[Loop, ...]
    unknown_loops: int
    custom_calls: dict[str, int] = field(default_factory=dict)
    norms: dict[str, int] = field(default_factory=dict)
    narrow_sums: dict[str, int] = field(default_factory=dict)
    hash: str = ""
    product_flops: dict[str, int] = field(default_factory=dict)
