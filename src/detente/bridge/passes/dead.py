"""Elimination of nodes that nothing reads. Draw ordinals were fixed at capture, so nothing is renumbered."""

from __future__ import annotations

from dataclasses import replace

from detente.bridge.graph import Graph, node_refs, refs


def without_dead(graph: Graph) -> Graph:
    """The graph without nodes and constants that no output depends on. Other inputs stay: they are the
    signature."""
    live = {ref.id for output in graph.outputs for ref in refs(output.value)}
    kept = []
    for node in reversed(graph.nodes):
        if node.id in live or node.out is None:
            kept.append(node)
            live.update(ref.id for ref in node_refs(node))
    inputs = tuple(i for i in graph.inputs if i.id in live or i.kind != "constant")
    constants = {i.name: graph.constants[i.name] for i in inputs if i.name in graph.constants}
    return replace(graph, inputs=inputs, nodes=tuple(reversed(kept)), constants=constants)
