"""The functional form of an exported program, without a second trace of it where none is needed.

``ExportedProgram.run_decompositions`` traces the whole program again, node by node, to take writes, aliases and no_grad
regions out of it and to write those composite operators in smaller ones that may alias or say less than they do
(``reshape``, ``to``, ``dropout``, ``batch_norm``): a quarter of BERT's first step. Here the nodes are copied in their
order, and only such an operator is traced, by itself and once for what it is given. What is written is followed by
name: a tensor's value is the last that was written to it, and a slice or a row that was written is put back into its
tensor.

A program goes the long way (``Long``) where that would say less than torch's own rewriting: other regions (autocast,
checkpoints, branches), lengths that are not known, a view that is read after its tensor was written, views of views
that are written. tests/bridge/capture/test_functional.py holds the two ways against each other.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode

from detente.bridge.capture.piece import Piece, traced
from detente.bridge.private import HigherOrderOperator, OpOverload, pytree, stays_whole

aten = torch.ops.aten
# What puts a written view back into its tensor, with the view's own arguments.
SCATTERS = {aten.slice.Tensor: aten.slice_scatter.default, aten.select.int: aten.select_scatter.default}
# What torch's rewriting has in the place of an operator, argument by argument.
RENAMED = {aten.lift_fresh_copy.default: aten.clone.default}
# Parts of the names of operators that are not composite, and whose schema keeps quiet about what they write.
QUIET = ("native_batch_norm", "rrelu", "_renorm", "_fused_moving", "lift.")


class Long(Exception):
    """This program is for torch's own rewriting."""


@dataclass(frozen=True)
class Signature:
    input_specs: list[Any]
    output_specs: list[Any]


@dataclass(frozen=True)
class Functional:
    """What is read of an ``ExportedProgram`` in its functional form."""

    graph_module: GraphModule
    graph_signature: Signature
    constants: Any
    state_dict: Any


def functional(exported: Any) -> Any:
    """The program as ``run_decompositions({})`` gives it: an ``ExportedProgram`` of torch's, or what is read of one."""
    try:
        return _Short(exported).program()
    except Long:
        return exported.run_decompositions({})


@dataclass
class _Memory:
    """A tensor's memory: its value now, and how often it was written. ``buffer``: the placeholder of one; ``fixed``: it
    may not be written (a parameter, the batch, a buffer that stands under two names)."""

    value: FxNode
    buffer: bool = False
    fixed: bool = False
    version: int = 0


@dataclass
class _Value:
    """What a node of the program stands for. ``view``: None for the whole of its memory, else the node that took a part
    of it; ``deep``: in a way that cannot be put back. ``at``: the version of the memory when it was taken."""

    memory: _Memory
    node: FxNode
    at: int = 0
    view: FxNode | None = None
    deep: bool = False

    def read(self) -> FxNode:
        if self.view is None and not self.deep:
            return self.memory.value
        if self.at != self.memory.version:
            raise Long("a view of what was written since")
        return self.node


class _Short:
    """One pass over the nodes, into a new graph."""

    def __init__(self, exported: Any) -> None:
        self.exported = exported
        self.graph = Graph()
        self.values: dict[FxNode, Any] = {}  # _Value, or a list of them
        self.pieces: dict[Any, Piece | None] = {}

    def program(self) -> Functional:
        module, signature = self.exported.graph_module, self.exported.graph_signature
        if any(spec.kind != OutputKind.USER_OUTPUT for spec in signature.output_specs):
            raise Long("the program has results that are no results")
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        held: list[tuple[_Memory, Any]] = []
        places = [self.place(spec) for spec in signature.input_specs]
        names = Counter(places)
        for node, spec, place in zip(placeholders, signature.input_specs, places, strict=True):
            self.known(node)
            made = self.graph.node_copy(node)
            buffer = spec.kind == InputKind.BUFFER
            memory = _Memory(made, buffer, fixed=not buffer or names[place] > 1)
            self.values[node] = _Value(memory, made)
            held.append((memory, spec))
        results = self.body(module)
        written = [(_uncopied(memory.value), spec.target) for memory, spec in held if memory.version]
        self.graph.output((*(value for value, _ in written), *results))
        self.graph.eliminate_dead_code()
        outputs = [
            OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(value.name), target)
            for value, target in written
        ]
        return Functional(
            GraphModule(module, self.graph),
            Signature(list(signature.input_specs), [*outputs, *signature.output_specs]),
            self.exported.constants,
            self.exported.state_dict,
        )

    def place(self, spec: Any) -> Any:
        """Where the tensor of a placeholder lies: what it is written, others at this place show."""
        tensors = (held.get(spec.target) for held in (self.exported.state_dict, self.exported.constants))
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                return tensor.untyped_storage().data_ptr() or id(tensor)
        return id(spec)

    def body(self, module: GraphModule) -> list[Any]:
        """Every node but the placeholders; what the graph gives."""
        for node in module.graph.nodes:
            self.known(node)
            if node.op == "output":
                given = node.args[0] if isinstance(node.args[0], list | tuple) else (node.args[0],)
                return [self.read(value) for value in given]
            if node.op == "get_attr" and isinstance(getattr(module, str(node.target), None), GraphModule):
                continue  # the body of a region, which its operator reads
            if node.op == "call_function":
                self.call(module, node)
            elif node.op != "placeholder":
                raise Long(f"a node of kind {node.op}")
        raise Long("a graph without an end")

    def known(self, node: FxNode) -> None:
        for part in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(part, torch.Tensor):
                if part.layout is torch.strided:
                    numbers = (*part.shape, *part.stride(), part.storage_offset())
                    if all(isinstance(n, int) for n in numbers):
                        continue
            elif part is None or isinstance(part, bool | int | float | str):
                continue
            raise Long("a length or a number that is not known")

    def read(self, value: Any) -> Any:
        """An argument in the new graph's words."""
        if not isinstance(value, FxNode):
            return value
        held = self.values[value]
        return [part.read() for part in held] if isinstance(held, list) else held.read()

    def call(self, module: GraphModule, node: FxNode) -> None:
        target: Any = node.target
        if target is operator.getitem and isinstance(node.args[0], FxNode):
            held = self.values[node.args[0]]
            if not isinstance(held, list):
                raise Long("an item of what has none")
            self.values[node] = held[node.args[1]]  # type: ignore[index]
        elif isinstance(target, HigherOrderOperator):
            self.region(module, node)
        elif not isinstance(target, OpOverload):
            raise Long(f"{target}")
        elif target is aten.detach_.default:  # of what carries a gradient it was refused
            self.values[node] = self.values[node.args[0]]  # type: ignore[index]
        elif target in RENAMED:
            self.values[node] = self.fresh(self.copied(node, RENAMED[target]))
        elif stays_whole(target) and not target._schema.is_mutable:
            if any(part in f"{target._schema.name}." for part in QUIET):
                raise Long(f"{target} may write what it does not say")
            self.results(node, self.copied(node, target))
        else:
            self.piece(node)

    def region(self, module: GraphModule, node: FxNode) -> None:
        """A region without gradients, in its place: the marks of its nodes say what it is."""
        target: Any = node.target
        inner: Any = node.args[1] if target.name() == "wrap_with_set_grad_enabled" else None
        body: Any = getattr(module, str(inner.target), None) if isinstance(inner, FxNode) else None
        if not isinstance(body, GraphModule):
            raise Long(f"a region of {target.name()}")
        places = [n for n in body.graph.nodes if n.op == "placeholder"]
        for place, given in zip(places, node.args[2:], strict=True):
            if not isinstance(given, FxNode):
                raise Long("a region of numbers")
            self.values[place] = self.values[given]
        self.body(body)
        self.values[node] = [self.values[value] for value in body.graph.output_node().args[0]]

    def copied(self, node: FxNode, target: Any) -> FxNode:
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), self.read)
        made = self.graph.call_function(target, args, kwargs)
        made.meta = dict(node.meta)
        return made

    def fresh(self, made: FxNode) -> _Value:
        return _Value(_Memory(made), made)

    def results(self, node: FxNode, made: FxNode) -> None:
        """What an operator that was copied gives: memory of its own, or a view of what it was given."""
        source = self.source(node)
        if not isinstance(node.meta.get("val"), list | tuple):
            self.values[node] = self.fresh(made) if source is None else self.view(node, made, source)
            return
        found = []
        for index, value in enumerate(node.meta["val"]):
            part = self.graph.call_function(operator.getitem, (made, index))
            part.meta = {**node.meta, "val": value}
            found.append(self.fresh(part) if source is None else self.view(None, part, source))
        self.values[node] = found

    def source(self, node: FxNode) -> _Value | None:
        """What a view looks at."""
        schema = node.target._schema  # type: ignore[union-attr]
        if not any(result.alias_info is not None for result in schema.returns):
            return None
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and isinstance(value, FxNode):
                held = self.values[value]
                if isinstance(held, _Value):
                    return held
        raise Long("a view of something else than a tensor")

    def view(self, node: FxNode | None, made: FxNode, source: _Value) -> _Value:
        memory = source.memory
        whole = source.view is None and not source.deep
        put_back = node is not None and whole and node.target in SCATTERS
        return _Value(memory, made, memory.version, node if put_back else None, deep=not put_back)

    def piece(self, node: FxNode) -> None:
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, FxNode)]
        held = [self.values[tensor] for tensor in tensors]
        if not all(isinstance(value, _Value) for value in held):
            raise Long("a list of tensors from one operator")
        key = (node.target, str(spec), *map(_described, leaves))
        if key not in self.pieces:
            self.pieces[key] = traced(node.target, leaves, spec, [t.meta["val"] for t in tensors])
        piece = self.pieces[key]
        if piece is None:
            raise Long(f"{node.target} writes otherwise than at its end")
        there: dict[FxNode, FxNode] = {}
        whose: dict[FxNode, _Value] = {}  # which of the node's own tensors a node of the piece is
        given, result = iter(held), None
        for inner in piece.graph.nodes:
            if inner.op == "placeholder":
                whose[inner] = next(given)
                there[inner] = whose[inner].read()
            elif inner.op == "output":
                result = inner.args[0]
            elif inner in piece.copies:
                whose[inner] = held[piece.copies[inner]]
            else:
                made = there[inner] = self.graph.node_copy(inner, there.__getitem__)
                made.meta = {**node.meta, "val": inner.meta["val"]}
        for place, value in piece.writes.items():
            self.write(node, held[place], there[value])
            whose[value] = held[place]
        self.values[node] = (
            [self.given(node, part, there, whose) for part in result]
            if isinstance(result, list | tuple)
            else self.given(node, result, there, whose)
        )

    def given(self, node: FxNode, part: Any, there: dict[FxNode, FxNode], whose: dict[FxNode, _Value]) -> Any:
        """What a piece gives: one of the tensors that it was given, or what it made, a view as far as anybody knows."""
        if part is None:
            return None
        if part in whose:
            return whose[part]
        if _looks_at_nothing(part):
            return self.fresh(there[part])
        source = next((v for n, v in whose.items() if _reached(part, n)), None)
        return self.fresh(there[part]) if source is None else self.view(None, there[part], source)

    def write(self, node: FxNode, target: _Value, value: FxNode) -> None:
        memory = target.memory
        if memory.fixed or target.deep or (target.view is not None and memory.buffer):
            raise Long("a write to what is not followed")
        if target.view is None:
            memory.value, memory.version = value, memory.version + 1
            return
        if target.at != memory.version:
            raise Long("a write to a view of what was written since")
        view = target.view
        rest = torch.fx.map_arg((view.args[1:], dict(view.kwargs)), self.read)
        put = self.graph.call_function(SCATTERS[view.target], (memory.value, value, *rest[0]), rest[1])
        put.meta = {**node.meta, "val": memory.value.meta["val"]}
        memory.value, memory.version = put, memory.version + 1


def _uncopied(value: FxNode) -> FxNode:
    """What was copied into a buffer, whose own dtype it is given where it is written."""
    source = value.args[1] if value.target is aten.copy.default else value
    assert isinstance(source, FxNode)
    return source


def _looks_at_nothing(node: FxNode) -> bool:
    """Whether a node of a piece has memory of its own."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not any(result.alias_info is not None for result in schema.returns)


def _reached(node: FxNode, source: FxNode) -> bool:
    """Whether ``node`` is a view of ``source``, or of a view of it."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], FxNode):
        if node is not source and _looks_at_nothing(node):
            return False
        node = node.args[0]
    return node is source


def _described(leaf: Any) -> Any:
    if not isinstance(leaf, FxNode):
        return type(leaf), str(leaf)
    value = leaf.meta["val"]
    if not isinstance(value, torch.Tensor):
        return type(value), str(value)
    return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.requires_grad
