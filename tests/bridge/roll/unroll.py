"""``unroll``: a graph with every roll node written out, the inverse of ``fold.roll`` up to ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from detente.bridge.graph import Aval, Graph, Node, Ref
from detente.bridge.passes.substitute import substitute
from detente.bridge.roll.fold import ROLL, SELECT


def unroll(graph: Graph) -> Graph:
    """Straight-line nodes that compute what ``graph`` computes, with the same random ordinals."""
    if not any(n.op == ROLL for n in graph.nodes):
        return graph
    writer = _Writer(1 + max(v.id for v in (*graph.inputs, *graph.nodes)))
    known: dict[Ref, Any] = {}
    writer.write(graph, known, 0, outermost=True)
    outputs = tuple(replace(o, value=writer.resolve(o.value, known)) for o in graph.outputs)
    return replace(graph, nodes=tuple(writer.nodes), outputs=outputs)


class _Writer:
    def __init__(self, fresh: int) -> None:
        self.fresh = fresh
        self.nodes: list[Node] = []
        self.avals: dict[Ref, Aval | None] = {}

    def resolve(self, value: Any, known: dict[Ref, Any]) -> Any:
        return substitute(value, known)

    def write(
        self,
        graph: Graph,
        known: dict[Ref, Any],
        offset: int,
        outermost: bool = False,
        marks: tuple[Any, ...] = (),
    ) -> None:
        """Append the graph's nodes; ``known`` maps its refs to what they are outside and grows by its results.
        The outermost graph keeps its ids; ``marks`` are those of the loops around."""
        for node in graph.nodes:
            args = self.resolve(node.args, known)
            kwargs = tuple((k, self.resolve(v, known)) for k, v in node.kwargs)
            if node.op == ROLL:
                for k, value in enumerate(
                    self.iterate(node, args, dict(kwargs), offset, (*marks, *node.marks))
                ):
                    known[Ref(node.id, k)] = value
                continue
            number = node.id if outermost else self.fresh
            self.fresh += not outermost
            draw = None if node.draw is None else node.draw + offset
            chosen = self.chosen(node, args)
            if chosen is not None:
                known[Ref(node.id)] = chosen
                continue
            self.nodes.append(
                replace(node, id=number, args=args, kwargs=kwargs, draw=draw, marks=(*marks, *node.marks))
            )
            if number != node.id:
                if isinstance(node.out, tuple):
                    known.update({Ref(node.id, k): Ref(number, k) for k in range(len(node.out))})
                else:
                    known[Ref(node.id)] = Ref(number)

    def chosen(self, node: Node, args: tuple[Any, ...]) -> Any:
        """The value that a selection picks from the written-out results of a loop, else None."""
        if node.op == SELECT and isinstance(args[0], _Stack) and args[1] == 0:
            return args[0].rows[args[2]]
        return None

    def iterate(
        self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], offset: int, marks: tuple[Any, ...]
    ) -> list[Any]:
        body, count, carries, stacked, invariants = args
        carried = list(carries)
        ys: list[list[Any]] = [[] for o in body.outputs if o.kind == "y"]
        for k in range(count):
            rows = [
                self.row(s, k, i.aval, node)
                for s, i in zip(stacked, body.inputs[len(carried) :], strict=False)
            ]
            inner: dict[Ref, Any] = {
                Ref(i.id): v for i, v in zip(body.inputs, (*carried, *rows, *invariants), strict=True)
            }
            self.write(body, inner, offset + k * kwargs.get("draws", 0), marks=marks)
            values = [self.resolve(o.value, inner) for o in body.outputs]
            carried = values[: len(carried)]
            for row, value in zip(ys, values[len(carried) :], strict=True):
                row.append(value)
        return [*carried, *(_Stack(tuple(r)) for r in ys)]

    def row(self, stacked: Any, k: int, aval: Aval, node: Node) -> Any:
        """One iteration's value of a stacked input; selected from it when it is one stacked value."""
        if isinstance(stacked, tuple):
            return stacked[k]
        if isinstance(stacked, _Stack):
            return stacked.rows[k]
        self.fresh += 1
        self.nodes.append(Node(self.fresh - 1, SELECT, (stacked, 0, k), (), aval, node.where, node.scope))
        return Ref(self.fresh - 1)


class _Stack:
    """The written-out rows of a loop's stacked result."""

    def __init__(self, rows: tuple[Any, ...]) -> None:
        self.rows = rows
