"""Arithmetic by a number that XLA must not rewrite, since the last digit decides.

``x / 41`` by the rounded reciprocal of 41 is one digit off for some multiples of 41, which is within rounding; its
floor is another cell, which is not. Where a quotient reaches a rounding or a comparison it is marked, and lowered so
that the compiler cannot know the divisor; elsewhere the product is kept, which is faster. ``(x + 12582912.0) -
12582912.0`` rounds to whole numbers, and XLA adds the two numbers first: the second of two sums in a row is marked.
"""

from __future__ import annotations

from dataclasses import replace

from detente.bridge.graph import Graph, Node, Ref, node_refs

EXACT = ("exact",)
_DIVIDES = frozenset({"div", "true_divide", "divide"})
_CUTS = frozenset(
    {
        "floor",
        "ceil",
        "round",
        "trunc",
        "fix",
        "frac",
        "floor_divide",
        "fmod",
        "remainder",
        "searchsorted",
        "bucketize",
        "eq",
        "ne",
        "ge",
        "gt",
        "le",
        "lt",
    }
)
# What hands a number on, or moves it by another: a border stays one.
_HANDS_ON = frozenset(
    {
        *(
            "view",
            "reshape",
            "_unsafe_view",
            "expand",
            "permute",
            "transpose",
            "t",
            "squeeze",
            "unsqueeze",
            "flatten",
        ),
        *(
            "slice",
            "select",
            "unbind",
            "split",
            "chunk",
            "cat",
            "stack",
            "clone",
            "contiguous",
            "detach",
            "alias",
        ),
        *(
            "add",
            "sub",
            "rsub",
            "mul",
            "neg",
            "abs",
            "clamp",
            "clamp_min",
            "clamp_max",
            "where",
            "relu",
            "lift_fresh_copy",
        ),
        *(
            "maximum",
            "minimum",
            "index",
            "index_select",
            "gather",
            "masked_fill",
            "nan_to_num",
            "unflatten",
            "copy",
        ),
        *_DIVIDES,
    }
)
_SUMS = frozenset({"add", "sub"})
_CASTS = frozenset({"_to_copy", "to", "type", "type_as"})


def _name(node: Node) -> str:
    return node.op.split(".")[1] if node.op.startswith("aten.") else ""


def _whole(node: Node) -> bool:
    return not isinstance(node.out, tuple | None) and node.out.dtype in (
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
    )


def _rounds(node: Node) -> bool:
    """Whether it makes another number of one that is a digit off. A division with a rounding mode is both."""
    name = _name(node)
    return name in _CUTS or (name in _CASTS and _whole(node)) or _divides_and_rounds(node)


def _divides_and_rounds(node: Node) -> bool:
    return _name(node) in _DIVIDES and any(key == "rounding_mode" and value for key, value in node.kwargs)


def _moves(node: Node | None) -> bool:
    """Whether it adds a float that is written down."""
    if node is None or _name(node) not in _SUMS or isinstance(node.out, tuple | None):
        return False
    return len(node.args) == 2 and isinstance(node.args[1], float) and not node.kwargs


def exact_arithmetic(graph: Graph) -> Graph:
    """The graph with the quotients marked that a rounding or a comparison sees, and the second of two sums."""
    made = {node.id: node for node in graph.nodes}
    pending = [ref for node in graph.nodes if _rounds(node) for ref in node_refs(node)]
    found = {node.id for node in graph.nodes if _divides_and_rounds(node)}
    found |= {
        node.id
        for node in graph.nodes
        if _moves(node) and isinstance(node.args[0], Ref) and _moves(made.get(node.args[0].id))
    }
    seen: set[int] = set()
    while pending:
        node = made.get(pending.pop().id)
        if node is None or node.id in seen:
            continue
        seen.add(node.id)
        name = _name(node)
        if name in _DIVIDES:
            found.add(node.id)
        if name in _HANDS_ON or (name in _CASTS and not _whole(node)):
            pending.extend(node_refs(node))
    if not found:
        return graph
    nodes = tuple(replace(n, marks=(*n.marks, EXACT)) if n.id in found else n for n in graph.nodes)
    return replace(graph, nodes=nodes)
