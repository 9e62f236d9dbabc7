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
# So many operations from an rsqrt to its reduce at most.
_DEPTH = 15
_BRIDGES = {
    "detente_batch_norm": "batch-norm-training", "detente_batch_norm_backward": "batch-norm-grad",
    "detente_layer_norm": "layer-norm", "detente_layer_norm_backward": "layer-norm-grad",
}  # fmt: skip


def norm_form(one: Instruction, at: int, home: Computation, module: Module) -> str | None:
    """``batch-norm-training``, ``batch-norm-grad`` or ``batch-norm-inference`` for those operations, or the bridge's
    kernels that do their work; ``layer-norm`` and ``layer-norm-grad`` for two more of those; ``expanded`` for an
    ``rsqrt`` of something that comes from a ``reduce`` over the last dimension (LayerNorm, RMSNorm), and
    ``expanded-other`` from a ``reduce`` over others (BatchNorm written out); None for anything else."""
    if one.opcode.startswith("batch-norm-"):
        return one.opcode
    if one.opcode == "custom-call":
        return _BRIDGES.get(one.target)
    if one.opcode != "rsqrt":
        return None
    found = _reduced(home, at, module)
    return None if found is None else ("expanded" if found else "expanded-other")


def _reduced(home: Computation, at: int, module: Module) -> bool | None:
    """Whether the nearest ``reduce`` above takes the last dimension alone; None when there is none."""
    near = [(home, operand) for operand in home.instructions[at].operands]
    seen: set[tuple[str, int]] = set()
    for _ in range(_DEPTH):
        above: list[tuple[Computation, int]] = []
        for place, which in near:
            if (place.name, which) in seen:
                continue
            seen.add((place.name, which))
            one = place.instructions[which]
            if one.opcode == "reduce":
                dims = place.instructions[one.operands[0]].shape.dims
                if len(one.reduced) < len(
                    dims
                ):  # a reduction to a scalar is a gradient's norm, not a layer's
                    return one.reduced == (len(dims) - 1,)
            elif one.opcode == "call":
                inner = module.computations[one.called[0]]
                above.append((inner, inner.root))
            elif one.opcode in _BETWEEN:
                above += [(place, operand) for operand in one.operands]
        near = above
    return None
