"""Which parameters the loss depends on the way autograd sees it: torch leaves ``.grad`` None on the others,
and an optimizer then leaves them alone, weight decay included. A zero gradient would not."""

from __future__ import annotations

from detente.bridge.graph import Aval, Graph, Node, Ref, node_refs, refs

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
_DIFFERENTIABLE = ("float", "bfloat", "complex")


def connected(graph: Graph) -> frozenset[str]:
    """Names of the trainable inputs that the loss is connected to."""
    made = {node.id: node for node in graph.nodes}
    inputs = {item.id: item for item in graph.inputs}
    pending = [ref for output in graph.outputs if output.kind == "loss" for ref in refs(output.value)]
    seen: set[Ref] = set()
    found: set[str] = set()
    while pending:
        ref = pending.pop()
        if ref in seen:
            continue
        seen.add(ref)
        if ref.id in inputs:
            if inputs[ref.id].trainable:
                found.add(inputs[ref.id].name)
        elif ref.id in made and _carries(made[ref.id], ref):
            pending.extend(node_refs(made[ref.id]))
    return frozenset(found)


def _carries(node: Node, ref: Ref) -> bool:
    if ("no_grad",) in node.marks or node.op.rpartition(".")[0] in _CUTS:
        return False
    out = node.out[ref.index] if isinstance(node.out, tuple) and ref.index is not None else node.out
    return not isinstance(out, Aval) or out.dtype.startswith(_DIFFERENTIABLE)
