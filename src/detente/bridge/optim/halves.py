"""A step's graph in two: the arithmetic of numbers, and the rest. Pure: no framework."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref, Where, graphs_in, node_refs, refs

AHEAD = "ahead."


@dataclass(frozen=True)
class Split:
    """A step's graph in two: ``ahead`` computes numbers from numbers (its inputs are ``hyper.*`` and ``state.*`` of no
    dimension), ``rest`` takes what it needs of them as inputs ``ahead.0``, ``ahead.1``, ..."""

    ahead: Graph
    rest: Graph


def split(graph: Graph) -> Split | None:
    """None where no number is computed from the state's. What depends on ``hyper.*`` alone stays where it is: it is one
    number for a whole group, and a stack of layers has no row of it for each."""
    states = _numbers_of(graph, "state.")
    numbers = states | _numbers_of(graph, "hyper.")
    of_numbers: list[Node] = []
    moved: set[int] = set()  # those that depend on the state
    for node in graph.nodes:
        read = {ref.id for ref in node_refs(node)}
        if _is_number(node) and read <= numbers:
            numbers.add(node.id)
            of_numbers.append(node)
            if read & (states | moved):
                moved.add(node.id)
    left = [node for node in graph.nodes if node.id not in moved]
    wanted = {ref.id for node in left for ref in node_refs(node)}
    wanted |= {ref.id for output in graph.outputs for ref in refs(output.value)}
    given = [node for node in of_numbers if node.id in moved & wanted]
    if not given:
        return None
    # With what they are made of, which may be needed on both sides.
    needed: set[int] = {node.id for node in given}
    for node in reversed(of_numbers):
        if node.id in needed:
            needed |= {ref.id for ref in node_refs(node)}
    apart = tuple(node for node in of_numbers if node.id in needed)
    inputs = tuple(i for i in graph.inputs if i.id in needed)
    outputs = tuple(Output("ahead", f"{AHEAD}{i}", Ref(node.id)) for i, node in enumerate(given))
    more = tuple(Input(node.id, "ahead", f"{AHEAD}{i}", _aval(node)) for i, node in enumerate(given))
    return Split(
        _renumbered(Graph(inputs, apart, outputs)),
        replace(graph, inputs=(*graph.inputs, *more), nodes=tuple(left)),
    )


def _numbers_of(graph: Graph, start: str) -> set[int]:
    """Inputs of no dimension whose names begin so."""
    return {i.id for i in graph.inputs if i.name.startswith(start) and i.aval.shape == ()}


def _is_number(node: Node) -> bool:
    return (
        isinstance(node.out, Aval)
        and node.out.shape == ()
        and node.draw is None
        and not any(True for _ in graphs_in((node.args, tuple(v for _, v in node.kwargs))))
    )


def _aval(node: Node) -> Aval:
    assert isinstance(node.out, Aval)
    return node.out


def _renumbered(graph: Graph) -> Graph:
    """Equal for equal arithmetic, whatever stood around it: ids count from 0, and no node says where it comes from."""
    ids = {i.id: at for at, i in enumerate(graph.inputs)}
    ids |= {n.id: len(ids) + at for at, n in enumerate(graph.nodes)}

    def moved(value: Any) -> Any:
        if isinstance(value, Ref):
            return Ref(ids[value.id], value.index)
        return tuple(moved(v) for v in value) if isinstance(value, tuple | list) else value

    return Graph(
        tuple(replace(i, id=ids[i.id]) for i in graph.inputs),
        tuple(
            replace(
                n,
                id=ids[n.id],
                args=moved(n.args),
                kwargs=tuple((k, moved(v)) for k, v in n.kwargs),
                where=Where(),
                scope="",
            )
            for n in graph.nodes
        ),
        tuple(replace(o, value=moved(o.value)) for o in graph.outputs),
    )
