"""Rewriting operands inside nested arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from detente.bridge.graph import Graph, Node, Ref


def rewire(node: Node, renamed: Mapping[Ref, Ref]) -> Node:
    """The node with other operands."""
    args = tuple(substitute(v, renamed) for v in node.args)
    kwargs = tuple((k, substitute(v, renamed)) for k, v in node.kwargs)
    return node if args == node.args and kwargs == node.kwargs else replace(node, args=args, kwargs=kwargs)


def substitute(value: Any, renamed: Mapping[Ref, Any]) -> Any:
    """Nested arguments with their ``Ref`` renamed. Sub-graphs have ids of their own and stay."""
    if isinstance(value, Ref):
        return renamed.get(value, value)
    if isinstance(value, tuple | list):
        return type(value)(substitute(v, renamed) for v in value)
    if isinstance(value, dict):
        return {k: substitute(v, renamed) for k, v in value.items()}
    return value


def refill(value: Any, read_refs: Iterator[Ref]) -> Any:
    """Nested arguments with their ``Ref`` replaced in order."""
    if isinstance(value, Ref):
        return next(read_refs)
    if isinstance(value, tuple | list):
        return type(value)(refill(v, read_refs) for v in value)
    if isinstance(value, dict):
        return {k: refill(v, read_refs) for k, v in value.items()}
    return value


def result_refs(nodes: Sequence[Node], base: int | None = None) -> list[Ref]:
    """A ``Ref`` to every result of the nodes, in order; ``base`` renumbers the nodes from there on."""
    found: list[Ref] = []
    for k, node in enumerate(nodes):
        number = node.id if base is None else base + k
        found += (
            [Ref(number, j) for j in range(len(node.out))] if isinstance(node.out, tuple) else [Ref(number)]
        )
    return found


def value_refs(graph: Graph) -> list[Ref]:
    """A ``Ref`` to every value of the graph, in the order of a tape's value numbers."""
    return [*(Ref(i.id) for i in graph.inputs), *result_refs(graph.nodes)]
