"""A Graph as integer arrays: the form in which runs of nodes are compared.

Every node gets a *token*, equal for two nodes that compute the same thing on values of other names: operator,
literal arguments, shapes and dtypes of the results, surroundings. Names, module paths and source lines are no
part of it, so layers are found in any module. Every value (an input, or one result of a node) gets a number in
program order, and every operand becomes a *slot* that holds the number of the value it reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from detente.bridge.graph import Aval, Graph, Node, Ref, node_refs, refs
from detente.bridge.roll.scalars import liftable

NOWHERE = -1  # no draw, no checkpoint region, no use

_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "int64": 8, "float64": 8}


@dataclass(frozen=True)
class Tape:
    """N nodes, V values, S slots. All arrays are int64."""

    graph: Graph
    token: np.ndarray  # (N,) equal where two nodes may be one node of a loop's body
    value: np.ndarray  # (N + 1,) number of a node's first result; the inputs come first: 0 .. len(inputs) - 1
    slot: np.ndarray  # (N + 1,) number of a node's first operand slot
    source: np.ndarray  # (S,) number of the value that a slot reads
    aval: np.ndarray  # (V,) equal where shape and dtype are equal
    size: np.ndarray  # (V,) bytes
    last_use: np.ndarray  # (V,) position of the last node that reads it; N for a graph output; NOWHERE
    draw: np.ndarray  # (N,) ordinal of the random call, or NOWHERE
    region: (
        np.ndarray
    )  # (N, depth) position of the first node of the checkpoint region at each depth, or NOWHERE


def results(node: Node) -> tuple[Aval | None, ...]:
    """A node's results as a tuple; an operator that returns nothing has one absent result."""
    return node.out if isinstance(node.out, tuple) else (node.out,)


def regions_of(node: Node) -> tuple[Any, ...]:
    """The checkpoint regions around a node, outermost first."""
    return tuple(m[1] for m in node.marks if m[0] == "checkpoint")


def nbytes(aval: Aval | None) -> int:
    """Size of one value in bytes (dtypes not in the table count four)."""
    return 0 if aval is None else math.prod(aval.shape) * _BYTES.get(aval.dtype, 4)


def read(graph: Graph) -> Tape:
    """The tape of ``graph``. Raises ValueError when a node reads a value that no earlier node made."""
    nodes, first = graph.nodes, len(graph.inputs)
    parameters = {i.id: i.trainable for i in graph.inputs if i.kind == "parameter"}
    number = {i.id: k for k, i in enumerate(graph.inputs)}
    several: set[int] = set()
    avals: list[Aval | None] = [i.aval for i in graph.inputs]
    value, slot, source, tokens = [first], [0], [], []
    last: dict[int, int] = {}
    interned: dict[Any, int] = {}
    draw, region, regions = [], [], {}
    depth = max((len(regions_of(n)) for n in nodes), default=0)

    def value_number(ref: Ref, reader: object) -> int:
        if ref.id not in number or (ref.index is None and ref.id in several):
            raise ValueError(f"{reader} reads {ref}, which is no single earlier value of the graph")
        return number[ref.id] + (ref.index or 0)

    for position, node in enumerate(nodes):
        for ref in node_refs(node):
            used = value_number(ref, f"{node.op} ({node.where})")
            source.append(used)
            last[used] = position
        number[node.id] = len(avals)
        if isinstance(node.out, tuple):
            several.add(node.id)
        avals.extend(results(node))
        value.append(len(avals))
        slot.append(len(source))
        tokens.append(interned.setdefault(token(node, parameters), len(interned)))
        draw.append(NOWHERE if node.draw is None else node.draw)
        inside = regions_of(node)
        row = [regions.setdefault(inside[: d + 1], position) for d in range(len(inside))]
        region.append(row + [NOWHERE] * (depth - len(row)))
    for output in graph.outputs:
        for ref in refs(output.value):
            last[value_number(ref, f"output {output.name}")] = len(nodes)

    kinds: dict[Aval | None, int] = {}
    last_use = np.full(len(avals), NOWHERE, np.int64)
    for used, position in last.items():
        last_use[used] = position
    return Tape(
        graph=graph,
        token=np.array(tokens, np.int64),
        value=np.array(value, np.int64),
        slot=np.array(slot, np.int64),
        source=np.array(source, np.int64),
        aval=np.array([kinds.setdefault(a, len(kinds)) for a in avals], np.int64),
        size=np.array([nbytes(a) for a in avals], np.int64),
        last_use=last_use,
        draw=np.array(draw, np.int64),
        region=np.array(region, np.int64).reshape(len(nodes), depth),
    )


def token(node: Node, parameters: dict[int, bool]) -> Any:
    """What two nodes must share to be one node of a loop's body.

    A trainable and a frozen parameter differ (they live in different parts of the state), so a run of layers
    is split where freezing begins. The number of a checkpoint region is compared by ``wiring``, not here.
    """
    args = tuple(_encode(v, node, k, parameters) for k, v in enumerate(node.args))
    kwargs = tuple((k, _encode(v, node, k, parameters)) for k, v in node.kwargs)
    marks = tuple(m[:1] if m[0] == "checkpoint" else m for m in node.marks)
    return (node.op, args, kwargs, node.out, node.draw is None, marks)


def _encode(value: Any, node: Node, where: int | str | None, parameters: dict[int, bool]) -> Any:
    if isinstance(value, Ref):
        return ("value", parameters.get(value.id))
    if isinstance(value, tuple | list):
        return tuple(_encode(v, node, None, parameters) for v in value)
    if isinstance(value, dict):
        return tuple((k, _encode(v, node, None, parameters)) for k, v in value.items())
    if isinstance(value, Graph):
        # ordinals of random calls inside a branch or a custom function are not shifted by a loop: never alike
        return ("draws", node.id) if draws(value) else _encode_graph(value)
    if where is not None and liftable(node, where, value):
        return ("scalar", type(value).__name__)
    # the type, because 1 == 1.0 == True; repr, because nan != nan and 0.0 == -0.0
    return (type(value).__name__, repr(value))


def draws(graph: Graph) -> bool:
    """Whether any node of a sub-graph, or of graphs inside it, draws random numbers."""

    def inside(value: Any) -> bool:
        if isinstance(value, Graph):
            return draws(value)
        return isinstance(value, tuple | list) and any(inside(v) for v in value)

    return any(n.draw is not None or inside(n.args) or inside(n.kwargs) for n in graph.nodes)


def _encode_graph(graph: Graph) -> Any:
    """A sub-graph with its ids renumbered: branches of two layers are equal when they compute the same thing."""
    number = {v.id: k for k, v in enumerate((*graph.inputs, *graph.nodes))}

    def plain(value: Any) -> Any:
        if isinstance(value, Ref):
            return ("ref", number.get(value.id, value.id), value.index)
        if isinstance(value, tuple | list):
            return tuple(plain(v) for v in value)
        if isinstance(value, dict):
            return tuple((k, plain(v)) for k, v in value.items())
        if isinstance(value, Graph):
            return _encode_graph(value)
        return (type(value).__name__, repr(value))

    inputs = tuple((i.kind, i.aval, i.name if i.kind == "constant" else "") for i in graph.inputs)
    nodes = tuple((n.op, plain(n.args), plain(n.kwargs), n.out, n.draw, n.marks) for n in graph.nodes)
    return (inputs, nodes, tuple((o.kind, plain(o.value)) for o in graph.outputs))
