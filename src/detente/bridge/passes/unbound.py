"""Many selections along one dimension of one tensor, taken apart at once.

A loop over time reads ``x[:, 0]``, ``x[:, 1]``, ... The derivative of each selection is the whole tensor, zero but for
one place, and their sum reads all of them for every element: of 64 steps of Mamba's recurrence most of the backward
pass. The derivative of taking a tensor apart is putting it together.
"""

from __future__ import annotations

from dataclasses import replace

from detente.bridge.graph import Aval, Graph, Node, Ref
from detente.bridge.passes.substitute import rewire, substitute

SELECT, UNBIND = "aten.select.int", "aten.unbind.int"
# Selections that are worth it, and the part of the dimension that they read.
LEAST, PART = 4, 0.5
_Source = tuple[Ref, int]


def unbind_selections(graph: Graph) -> Graph:
    """The graph with every such family of selections as one ``unbind``, where the first of them stood."""
    avals = _avals(graph)
    families: dict[_Source, set[int]] = {}
    selections = {node.id: found for node in graph.nodes if (found := _selection(node, avals)) is not None}
    for ref, index, dim in selections.values():
        families.setdefault((ref, dim), set()).add(index)
    wanted = {
        (ref, dim)
        for (ref, dim), seen in families.items()
        if len(seen) >= max(LEAST, PART * avals[ref].shape[dim])
    }
    if not wanted:
        return graph
    fresh = 1 + max((*(i.id for i in graph.inputs), *(n.id for n in graph.nodes)))
    made: dict[_Source, int] = {}
    renamed: dict[Ref, Ref] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        found = selections.get(node.id)
        if found is None or (found[0], found[2]) not in wanted:
            nodes.append(rewire(node, renamed))
            continue
        ref, index, dim = found
        if (ref, dim) not in made:
            made[ref, dim] = fresh + len(made)
            size = avals[ref].shape[dim]
            assert isinstance(node.out, Aval)
            nodes.append(
                replace(
                    node,
                    id=made[ref, dim],
                    op=UNBIND,
                    args=(substitute(ref, renamed), dim),
                    out=(node.out,) * size,
                )
            )
        renamed[Ref(node.id)] = Ref(made[ref, dim], index)
    outputs = tuple(replace(o, value=substitute(o.value, renamed)) for o in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _avals(graph: Graph) -> dict[Ref, Aval]:
    found = {Ref(i.id): i.aval for i in graph.inputs}
    for node in graph.nodes:
        if isinstance(node.out, tuple):
            found |= {Ref(node.id, k): a for k, a in enumerate(node.out) if a is not None}
        elif node.out is not None:
            found[Ref(node.id)] = node.out
    return found


def _selection(node: Node, avals: dict[Ref, Aval]) -> tuple[Ref, int, int] | None:
    """What is selected from, the place and the dimension, both counted from the front; only where a gradient may flow:
    under ``no_grad`` nothing is won, and what is taken apart is one value under one mark."""
    if node.op != SELECT or node.kwargs or node.marks or len(node.args) != 3:
        return None
    ref, dim, index = node.args
    if not (isinstance(ref, Ref) and type(dim) is int and type(index) is int and ref in avals):
        return None
    shape = avals[ref].shape
    dim, size = dim % len(shape), shape[dim]
    return ref, index % size, dim
