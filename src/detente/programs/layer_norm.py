"""In which form a program has its LayerNorms: as batch normalisation, or written out as arithmetic.

torch_xla lowers ``layer_norm`` to ``batch-norm-training`` over a reshaped input; JAX writes mean, variance and
``rsqrt`` out. The two are the same function and very different text, so their number is what can be compared.
"""

from __future__ import annotations

from detente.programs.module import Computation, Instruction, Module

# What may lie between a variance and its rsqrt.
_BETWEEN = frozenset(
    {"add", "subtract", "multiply", "divide", "maximum", "max", "select", "convert", "reshape", "broadcast",
     "copy", "transpose", "clamp", "bitcast", "abs", "power", "get-tuple-element"}
)  # fmt: skip
_DEPTH = 14


def norm_form(one: Instruction, at: int, home: Computation, module: Module) -> str | None:
    """``batch-norm-training``, ``batch-norm-grad`` or ``batch-norm-inference`` for those operations; ``expanded``
    for an ``rsqrt`` of something that comes from a ``reduce`` over the last dimension (LayerNorm, RMSNorm), and
    ``expanded-other`` from a ``reduce`` over others (BatchNorm written out); None for anything else."""
    if one.opcode.startswith("batch-norm-"):
        return one.opcode
    if one.opcode != "rsqrt":
        return None
    found = _reduced(home, at, module, _DEPTH)
    return None if found is None else ("expanded" if found else "expanded-other")


def _reduced(home: Computation, at: int, module: Module, depth: int) -> bool | None:
    """Whether the nearest ``reduce`` above takes the last dimension alone; None when there is none."""
    for operand in home.instructions[at].operands:
        one = home.instructions[operand]
        found = None
        if one.opcode == "reduce":
            source = home.instructions[one.operands[0]].shape.dims
            if len(one.reduced) < len(source):  # a reduction to a scalar is a gradient's norm, not a layer's
                found = one.reduced == (len(source) - 1,)
        elif depth and one.opcode == "call":
            inner = module.computations[one.called[0]]
            found = _reduced(inner, inner.root, module, depth - 1) if inner.instructions else None
            if found is None and inner.instructions[inner.root].opcode == "reduce":
                root = inner.instructions[inner.root]
                found = root.reduced == (len(inner.instructions[root.operands[0]].shape.dims) - 1,)
        elif depth and one.opcode in _BETWEEN:
            found = _reduced(home, operand, module, depth - 1)
        if found is not None:
            return found
    return None
