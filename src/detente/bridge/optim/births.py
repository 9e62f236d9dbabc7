"""Separate "make the state" from "update the state" in an optimizer's first step.

torch makes a parameter's state inside its first ``step()``, so that step's graph differs from all later ones.
One executable must serve both. Where the first graph is the later graph with each state input replaced by
something freshly made (zeros, ``full(lr)``, a copy of the parameter), those somethings are the births, and
the later graph serves every step.
"""

from __future__ import annotations

from typing import Any

from detente.bridge.graph import Graph, Node, Output, Ref
from detente.bridge.optim.program import Trace, live


def births(first: Trace, step: Trace) -> dict[str, Graph] | None:
    """Leaf key -> the graph that makes it, or None where the first step is another computation."""
    if first.leaves != step.leaves:
        return None
    later = {path.outcomes: path.graph for path in step.paths}
    if {path.outcomes for path in first.paths} != set(later):
        return None
    found: dict[str, Graph] = {}
    for path in first.paths:
        match = _Match(path.graph, later[path.outcomes])
        if not match.outputs():
            return None
        for key, value in match.born.items():
            graph = live(Graph(path.graph.inputs, path.graph.nodes, (Output("buffer", key, value),)))
            if _reads(graph, "grad"):
                return None
            if found.setdefault(key, graph) != graph and not same_graph(found[key], graph):
                return None
    return found


def _reads(graph: Graph, name: str) -> bool:
    from detente.bridge.graph import node_refs, refs

    ids = {item.id for item in graph.inputs if item.name == name}
    used = {ref.id for node in graph.nodes for ref in node_refs(node)}
    used |= {ref.id for output in graph.outputs for ref in refs(output.value)}
    return bool(ids & used)


def same_graph(a: Graph, b: Graph) -> bool:
    """Whether two graphs are one but for the numbers of their values."""
    return _Match(a, b, states=True).outputs()


class _Match:
    """A walk through two graphs at once, from the outputs down. ``states``: state inputs are inputs like others, and
    nothing is born."""

    def __init__(self, first: Graph, step: Graph, *, states: bool = False) -> None:
        self.states = states
        self.first, self.step = first, step
        self.made: tuple[dict[int, Node], dict[int, Node]] = (
            {node.id: node for node in first.nodes},
            {node.id: node for node in step.nodes},
        )
        self.names = ({i.id: i.name for i in first.inputs}, {i.id: i.name for i in step.inputs})
        self.born: dict[str, Any] = {}
        self.seen: dict[tuple[Any, Any], bool] = {}

    def outputs(self) -> bool:
        return len(self.first.outputs) == len(self.step.outputs) and all(
            (a.kind, a.name) == (b.kind, b.name) and self.value(a.value, b.value)
            for a, b in zip(self.first.outputs, self.step.outputs, strict=True)
        )

    def value(self, a: Any, b: Any) -> bool:
        if isinstance(b, Ref):
            name = "" if self.states else self.names[1].get(b.id, "")
            if name.startswith("state."):
                return self.birth(name.removeprefix("state."), a)
            return isinstance(a, Ref) and self.refs(a, b)
        if isinstance(b, tuple | list):
            return isinstance(a, tuple | list) and len(a) == len(b) and all(map(self.value, a, b))
        return type(a) is type(b) and a == b

    def birth(self, key: str, value: Any) -> bool:
        if key not in self.born:
            self.born[key] = value
        return self.born[key] == value

    def refs(self, a: Ref, b: Ref) -> bool:
        if a.index != b.index:
            return False
        if b.id in self.names[1]:
            return self.names[0].get(a.id) == self.names[1][b.id]
        if (a.id, b.id) not in self.seen:
            x, y = self.made[0].get(a.id), self.made[1].get(b.id)
            self.seen[a.id, b.id] = (
                x is not None
                and y is not None
                and (x.op, x.out) == (y.op, y.out)
                and self.value(x.args, y.args)
                and [k for k, _ in x.kwargs] == [k for k, _ in y.kwargs]
                and self.value(tuple(v for _, v in x.kwargs), tuple(v for _, v in y.kwargs))
            )
        return self.seen[a.id, b.id]
