"""Many selections along one dimension of one tensor, taken apart at once.

A loop over time reads ``x[:, 0]``, ``x[:, 1]``, ... The derivative of each selection is the whole tensor, zero but for
one place, and their sum reads all of them for every element: of 64 steps of Mamba's recurrence most of the backward
pass. The derivative of taking a tensor apart is putting it together.
"""

from __future__ import annotations

from dataclasses import replace

from detente.bridge.graph import Aval, Graph, Node, Ref, avals, node_refs, refs
from detente.bridge.passes.substitute import rewire, substitute

SELECT, UNBIND = "aten.select.int", "aten.unbind.int"
# Selections that are worth it, and the part of the dimension that they read.
LEAST, PART = 4, 0.5
_Source = tuple[Ref, int]


def unbind_selections(graph: Graph) -> Graph:
    """The graph with every such family of selections as one ``unbind``, where the first of them stood."""
    known = avals(graph)
    families: dict[_Source, set[int]] = {}
    selections = {node.id: found for node in graph.nodes if (found := _selection(node, known)) is not None}
    for ref, index, dim in selections.values():
        families.setdefault((ref, dim), set()).add(index)
    wanted = {
        (ref, dim)
        for (ref, dim), seen in families.items()
        if len(seen) >= max(LEAST, PART * known[ref].shape[dim])
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
            size = known[ref].shape[dim]
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


def select_few(graph: Graph) -> Graph:
    """The graph with every ``unbind`` of which only a few results are read as that many selections."""
    read: dict[int, set[int]] = {n.id: set() for n in graph.nodes if n.op == UNBIND}
    outputs = (r for o in graph.outputs for r in refs(o.value))
    for ref in (*outputs, *(r for n in graph.nodes for r in node_refs(n))):
        if ref.id in read and ref.index is not None:
            read[ref.id].add(ref.index)
    fresh = 1 + max((*(i.id for i in graph.inputs), *(n.id for n in graph.nodes)))
    renamed: dict[Ref, Ref] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        places = read.get(node.id, set())
        if node.op != UNBIND or len(places) >= LEAST or not isinstance(node.out, tuple):
            nodes.append(rewire(node, renamed))
            continue
        source, dim = (*node.args, 0)[:2]
        for place in sorted(places):
            args = (substitute(source, renamed), dim, place)
            nodes.append(replace(node, id=fresh, op=SELECT, args=args, kwargs=(), out=node.out[place]))
            renamed[Ref(node.id, place)] = Ref(fresh)
            fresh += 1
    given = tuple(replace(o, value=substitute(o.value, renamed)) for o in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=given)


def _selection(node: Node, known: dict[Ref, Aval]) -> tuple[Ref, int, int] | None:
    """What is selected from, the place and the dimension, both counted from the front; only where a gradient may flow:
    under ``no_grad`` nothing is won, and what is taken apart is one value under one mark."""
    if node.op != SELECT or node.kwargs or node.marks or len(node.args) != 3:
        return None
    ref, dim, index = node.args
    if not (isinstance(ref, Ref) and type(dim) is int and type(index) is int and ref in known):
        return None
    shape = known[ref].shape
    dim, size = dim % len(shape), shape[dim]
    return ref, index % size, dim
