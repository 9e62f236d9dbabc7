"""Which results of a node have a history on autograd's tape."""

from __future__ import annotations

from detente.bridge.graph import Aval, Node, Ref

# they read a tensor for its shape or its values, and autograd gives their result no history
_CUTS = frozenset(
    f"aten.{name}"
    for name in (
        "detach",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "bernoulli",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_empty_strided",
        "_local_scalar_dense",
        "item",
        "histc",
        "bincount",
    )
)
DIFFERENTIABLE = ("float", "bfloat", "complex")


def carries(node: Node, ref: Ref) -> bool:
    """Whether autograd gives this result of the node a history."""
    if ("no_grad",) in node.marks or node.op.rpartition(".")[0] in _CUTS:
        return False
    out = node.out[ref.index] if isinstance(node.out, tuple) and ref.index is not None else node.out
    return not isinstance(out, Aval) or out.dtype.startswith(DIFFERENTIABLE)
