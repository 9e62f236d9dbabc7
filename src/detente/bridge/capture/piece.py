"""One operator of an exported program, traced by itself: what stands for its node in the functional form.

A composite operator becomes smaller ones, a write becomes a value and the place that it is written to. It is torch's
own tracer that says so, over what the node is given, so that what an operator means is torch's word and not ours.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx

from detente.bridge.private import fake_mode_of, python_dispatcher, pytree

aten = torch.ops.aten
_COPY, _NORM = aten.copy_.default, aten._native_batch_norm_legit.default
# Where a batch norm is given its statistics, and where the functional one gives the new ones.
_STATISTICS = (3, 4)
_FUNCTIONAL_NORM = aten._native_batch_norm_legit_functional.default


@dataclass(frozen=True)
class Piece:
    """What stands for one node: a graph of the node's tensors. ``writes``: which of them (by place) have which value
    afterwards; ``copies``: the nodes that say so, which are the tensors themselves."""

    graph: Graph
    writes: dict[int, FxNode]
    copies: dict[FxNode, int]

    @staticmethod
    def of(module: GraphModule) -> Piece | None:
        """None for a graph that writes otherwise than at its end."""
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        writes: dict[int, FxNode] = {}
        copies: dict[FxNode, int] = {}
        for node in module.graph.nodes:
            if node.op not in ("placeholder", "call_function", "output"):
                return None
            if node.target is _COPY and node.args[0] in places:
                copies[node] = places.index(node.args[0])
                writes[copies[node]] = node.args[1]
            elif node.target is _NORM:
                writes |= _statistics(module.graph, node, places)
            elif getattr(getattr(node.target, "_schema", None), "is_mutable", False):
                return None
        return Piece(module.graph, writes, copies)


def _statistics(graph: Graph, node: FxNode, places: list[FxNode]) -> dict[int, FxNode]:
    """Make a batch norm the one that gives its statistics as results."""
    written = {}
    node.target = _FUNCTIONAL_NORM
    last = max(node.users, key=list(graph.nodes).index)
    for place in _STATISTICS:
        with graph.inserting_after(last):
            last = graph.call_function(operator.getitem, (node, place))
        held = node.args[place]
        assert isinstance(held, FxNode)
        last.meta["val"] = held.meta["val"]
        written[places.index(held)] = last
    node.meta["val"] = (*node.meta["val"], *(value.meta["val"] for value in written.values()))
    return written


def traced(op: Any, leaves: list[Any], spec: Any, values: list[Any]) -> Piece | None:
    """The operator over these arguments: ``leaves`` and ``spec`` as of ``tree_flatten``, ``values`` the tensors among
    them. None where it writes otherwise than at its end, or cannot be traced by itself."""
    mode = fake_mode_of(values)
    if mode is None or not all(isinstance(value, torch.Tensor) for value in values):
        return None

    def run(*tensors: torch.Tensor, op: Any = op) -> Any:
        given = iter(tensors)
        whole = [next(given) if isinstance(leaf, FxNode) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(whole, spec)
        return op(*args, **kwargs)

    with mode, python_dispatcher():
        try:
            return _written(op, run, values) or _operator(run, values)
        except Exception:  # an operator that cannot be traced by itself: torch traces it with its neighbours
            return None


def _written(op: Any, run: Any, values: list[Any]) -> Piece | None:
    """Of an operator that writes its first tensor: the one of the same name that does not, where that gives what is
    written."""
    name, plain = op._schema.name.removeprefix("aten::"), None
    if name.endswith("_") and op._schema.is_mutable:
        plain = getattr(getattr(aten, name[:-1], None), op._overloadname, None)
    if plain is None:
        return None
    module = make_fx(lambda *tensors: run(*tensors, op=plain))(*values)
    value = module.graph.output_node().args[0]
    first = next(node for node in module.graph.nodes if node.op == "placeholder")
    if not isinstance(value, FxNode) or not _alike(value.meta["val"], first.meta["val"]):
        return None
    piece = Piece.of(module)
    return None if piece is None or piece.writes else Piece(piece.graph, {0: value}, {})


def _alike(one: Any, other: Any) -> bool:
    return isinstance(one, torch.Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)


def _operator(run: Any, values: list[Any]) -> Piece | None:
    # Plainly first: torch's rewriting in C has a dropout and a batch norm in other operators.
    for traced in (run, torch.func.functionalize(run, remove="mutations")):
        piece = Piece.of(make_fx(traced)(*values))
        if piece is not None:
            return piece
    return None
