"""The functional form of an exported program, without a second trace of it where none is needed.

``ExportedProgram.run_decompositions`` traces the whole program again, node by node, to take writes and aliases out
of it and to write those composite operators in smaller ones that may alias or say less than they do (``reshape``,
``contiguous``, ``to``, ``dropout``, ``batch_norm``). It was a fifth of BERT's first step. Most programs write nothing
but the statistics of a batch norm, and then each such operator can be rewritten by itself: it is traced once for what
it is given, and the piece is put where it stands.

A program goes the long way that writes anything else than a buffer which nobody else reads, that has regions of its own
(no_grad, autocast, checkpoints, branches), lengths that are not known, or an operator whose schema keeps quiet about
what it does. tests/bridge/capture/test_functional.py holds the two ways against each other.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx

from detente.bridge.private import OpOverload, fake_mode_of, python_dispatcher, pytree, stays_whole

# Parts of the names of operators that are not composite, and whose schema keeps quiet about what they write.
_QUIET = ("native_batch_norm", "rrelu", "_renorm", "_fused_moving", "lift")
_COPY = torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Signature:
    input_specs: list[Any]
    output_specs: list[Any]


@dataclass(frozen=True)
class Functional:
    """What of an ``ExportedProgram`` is read of its functional form."""

    graph_module: GraphModule
    graph_signature: Any
    constants: Any


@dataclass(frozen=True)
class _Piece:
    """What stands for one node: a graph of the node's tensors. ``writes``: which of them (by place) have which value
    afterwards."""

    module: GraphModule
    writes: dict[int, FxNode]

    @staticmethod
    def of(module: GraphModule) -> _Piece | None:
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        writes: dict[int, FxNode] = {}
        for node in module.graph.nodes:
            if node.op not in ("placeholder", "call_function", "output"):
                return None
            if node.op != "call_function" or not getattr(node.target, "_schema", None):
                continue
            if node.target is _COPY and node.args[0] in places:
                writes[places.index(node.args[0])] = node.args[1]
            elif node.target._schema.is_mutable:
                return None
        return _Piece(module, writes)


def functional(exported: Any) -> Any:
    """The program as ``run_decompositions({})`` gives it: an ``ExportedProgram`` of torch's, or the same in short, for
    which ``exported`` is used up."""
    pieces = _pieces(exported) if all(map(_plain, exported.graph_module.graph.nodes)) else None
    return exported.run_decompositions({}) if pieces is None else _short(exported, pieces)


def _plain(node: FxNode) -> bool:
    """Whether the node computes with lengths that are known, and is no region."""
    if any(_unknown(part) for part in pytree.tree_leaves(node.meta.get("val"))):
        return False
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op in ("placeholder", "output", "call_function")
    if not isinstance(node.target, OpOverload):
        return False
    name = node.target._schema.name
    return name.startswith("aten::") and not (
        stays_whole(node.target) and any(part in name for part in _QUIET)
    )


def _unknown(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(not isinstance(n, int) for n in (*value.shape, *value.stride(), value.storage_offset()))
    return value is not None and not isinstance(value, bool | int | float | str)


def _pieces(exported: Any) -> dict[FxNode, _Piece] | None:
    """What stands for each operator that does not stay as it is; None where one is more than that."""
    graph = exported.graph_module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    specs = exported.graph_signature.input_specs
    buffers = {n for n, s in zip(placeholders, specs, strict=True) if s.kind == InputKind.BUFFER}
    if any(spec.kind != OutputKind.USER_OUTPUT for spec in exported.graph_signature.output_specs):
        return None
    found: dict[FxNode, _Piece] = {}
    known: dict[Any, _Piece | None] = {}
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        if stays_whole(node.target) and not node.target._schema.is_mutable:
            continue
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, FxNode)]
        key = (node.target, str(spec), *map(_described, leaves))
        if key not in known:
            known[key] = _traced(node.target, leaves, spec, [t.meta["val"] for t in tensors])
        piece = known[key]
        if piece is None or any(
            tensors[place] not in buffers or len(tensors[place].users) > 1 for place in piece.writes
        ):
            return None
        found[node] = piece
    return found


def _described(leaf: Any) -> Any:
    if not isinstance(leaf, FxNode):
        return type(leaf), str(leaf)
    value = leaf.meta["val"]
    if not isinstance(value, torch.Tensor):
        return type(value), str(value)
    return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.requires_grad


def _traced(op: Any, leaves: list[Any], spec: Any, values: list[Any]) -> _Piece | None:
    mode = fake_mode_of(values)
    if mode is None or not all(isinstance(value, torch.Tensor) for value in values):
        return None

    def run(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        whole = [next(given) if isinstance(leaf, FxNode) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(whole, spec)
        return op(*args, **kwargs)

    with mode, python_dispatcher():
        return _Piece.of(make_fx(torch.func.functionalize(run, remove="mutations"))(*values))


def _short(exported: Any, pieces: dict[FxNode, _Piece]) -> Functional:
    graph = exported.graph_module.graph
    written: dict[FxNode, FxNode] = {}
    for node, piece in pieces.items():
        _inline(graph, node, piece, written)
    output = next(node for node in graph.nodes if node.op == "output")
    specs = exported.graph_signature.input_specs
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    first = [(n, s) for n, s in zip(placeholders, specs, strict=True) if n in written]
    output.args = ((*(written[node] for node, _ in first), *output.args[0]),)
    graph.eliminate_dead_code()
    outputs = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(written[node].name), spec.target)
        for node, spec in first
    ]
    signature = Signature(list(specs), [*outputs, *exported.graph_signature.output_specs])
    return Functional(exported.graph_module, signature, exported.constants)


def _inline(graph: Any, node: FxNode, piece: _Piece, written: dict[FxNode, FxNode]) -> None:
    """The piece in the node's place, with the node's line, module and tag."""
    tensors = [leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, FxNode)]
    given, there, result = iter(tensors), {}, None
    with graph.inserting_before(node):
        for inner in piece.module.graph.nodes:
            if inner.op == "placeholder":
                there[inner] = next(given)
            elif inner.op == "output":
                result = torch.fx.map_arg(inner.args[0], there.__getitem__)
            elif inner.target is _COPY:
                there[inner] = there[inner.args[1]]
            else:
                made = there[inner] = graph.node_copy(inner, there.__getitem__)
                made.meta = {**node.meta, "val": inner.meta["val"]}
    for place, value in piece.writes.items():
        written[tensors[place]] = there[value]
    if isinstance(result, FxNode):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(result[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)
