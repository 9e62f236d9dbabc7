"""Which parameters the loss depends on the way autograd sees it: torch leaves ``.grad`` None on the others,
and an optimizer then leaves them alone, weight decay included. A zero gradient would not."""

from __future__ import annotations

from detente.bridge.capture.history import carries
from detente.bridge.graph import Graph, Ref, node_refs, refs


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
        elif ref.id in made and carries(made[ref.id], ref):
            pending.extend(node_refs(made[ref.id]))
    return frozenset(found) - graph.unreached
