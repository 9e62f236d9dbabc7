"""From torch's exported, functional program to the neutral graph."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from detente.bridge.capture import functions
from detente.bridge.capture.arrays import to_numpy
from detente.bridge.capture.batch import Layout, aval
from detente.bridge.capture.functions import Kept
from detente.bridge.capture.provenance import Tag, Tags, scope_of
from detente.bridge.capture.weights import Weights
from detente.bridge.capture.where import where
from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref
from detente.bridge.refusal import Reason, Refused, refuse

# operators that only check, or only pass a value on: nothing to compute
_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")


def convert(exported: Any, tags: Tags, held: Weights, layout: Layout, kept: dict[str, Kept]) -> Graph:
    """The neutral graph of a functional ``ExportedProgram``. Raises Refused with every reason found."""
    maker = _Maker(tags, kept)
    signature = exported.graph_signature
    module: GraphModule = exported.graph_module
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    paths = iter(layout.paths)
    constants: dict[str, Any] = {}
    inputs: list[Input] = []
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        kind, target = spec.kind.name, (spec.target or "").removeprefix("model.")
        if kind in ("PARAMETER", "BUFFER"):
            name = held.canonical(target)
            if name not in held.tensors:
                raise refuse("export", f"the exported program reads {target}, which the module does not name")
            known = next((i for i in inputs if i.name == name and i.kind != "batch"), None)
            if known is None:  # a tied weight comes once per name: all names read the first input
                role = "parameter" if name in held.parameters else "buffer"
                known = Input(maker.number(), role, name, aval(held.tensors[name]), name in held.trainable)
                inputs.append(known)
            maker.values[node] = Ref(known.id)
            continue
        if kind == "USER_INPUT":
            item = Input(maker.number(), "batch", next(paths), maker.aval(node))
        elif kind == "CONSTANT_TENSOR":
            item = Input(maker.number(), "constant", target, maker.aval(node))
            constants[target] = to_numpy(exported.constants[spec.target])
        else:
            raise refuse("export", f"an input of kind {kind} ({spec.target})")
        inputs.append(item)
        maker.values[node] = Ref(item.id)
    maker.body(module)
    outputs: list[Output] = []
    given = next(n for n in module.graph.nodes if n.op == "output").args[0]
    for value, spec in zip(given, signature.output_specs, strict=True):
        kind = spec.kind.name
        if kind == "BUFFER_MUTATION":
            name = held.canonical(spec.target.removeprefix("model."))
            outputs.append(Output("buffer", name, maker.written(value, held.tensors[name])))
        elif kind == "USER_OUTPUT":
            role = "aux" if any(o.kind == "loss" for o in outputs) else "loss"
            outputs.append(Output(role, role, maker.literal(value)))
        elif kind == "PARAMETER_MUTATION":
            maker.bad.append(Reason("parameter", f"forward writes parameter {spec.target}"))
        else:
            maker.bad.append(
                Reason("batch", f"forward writes the batch in place ({kind})", None, "clone it first")
            )
    if maker.bad:
        raise Refused(maker.bad)
    return Graph(tuple(inputs), tuple(maker.nodes), tuple(outputs), constants)


@dataclass
class _Maker:
    """Numbers values and turns fx nodes into neutral ones."""

    tags: Tags
    kept: dict[str, Kept]
    values: dict[FxNode, Any] = field(default_factory=dict)  # fx node -> Ref, or tuple of them
    nodes: list[Node] = field(default_factory=list)
    bad: list[Reason] = field(default_factory=list)
    used: dict[int, int] = field(default_factory=dict)  # tag -> draws already given to its nodes
    count: list[int] = field(default_factory=lambda: [0])
    surroundings: Tag | None = None  # of the node that a sub-graph belongs to

    def number(self) -> int:
        self.count[0] += 1
        return self.count[0]

    def aval(self, node: FxNode) -> Aval:
        return _aval(node.meta.get("val"))

    def body(self, module: GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.call(module, node)
            elif node.op == "get_attr" and not isinstance(
                getattr(module, str(node.target), None), GraphModule
            ):
                self.bad.append(Reason("export", f"the program reads an attribute, {node.target}"))

    def call(self, module: GraphModule, node: FxNode) -> None:
        if node.target is operator.getitem and isinstance(node.args[0], FxNode):
            whole = self.values[node.args[0]]
            index = node.args[1]
            self.values[node] = Ref(whole.id, index) if isinstance(whole, Ref) else whole[index]
            return
        name = _name(node.target)
        if name.split(".")[1:2] and name.split(".")[1] in _CHECKS:
            return
        tag = self.tag(node)
        symbolic = _symbolic(node.meta.get("val"))
        if symbolic:
            self.bad.append(Reason("dynamic-shape", f"{name} gives a result of size {symbolic}", tag.where))
            self.values[node] = Ref(-1)
            return
        args = tuple(self.literal(a, module) for a in node.args)
        kwargs = tuple((k, self.literal(v, module)) for k, v in node.kwargs.items())
        out = _out(node.meta.get("val"))
        if name in self.kept:
            name, args = "detente.function", self.function(self.kept[name], node, tag)
        draw = self.draw(node, name, tag)
        made = Node(self.number(), name, args, kwargs, out, tag.where, tag.scope, draw, tag.marks)
        self.nodes.append(made)
        self.values[node] = Ref(made.id)

    def written(self, node: FxNode, target: torch.Tensor) -> Any:
        """A buffer's new value in the buffer's own dtype: a write rounds (BatchNorm's statistics in bfloat16)."""
        value, kind = self.literal(node), str(target.dtype).removeprefix("torch.")
        if self.aval(node).dtype == kind:
            return value
        tag = self.tag(node)
        made = Node(
            self.number(),
            "aten._to_copy.default",
            (value,),
            (("dtype", kind),),
            aval(target),
            tag.where,
            tag.scope,
            None,
            tag.marks,
        )
        self.nodes.append(made)
        return Ref(made.id)

    def tag(self, node: FxNode) -> Tag:
        found = self.tags.of(node)
        if found is not None:
            return found
        outer = self.surroundings
        marks = outer.marks if outer else ()
        return Tag(where(node.meta.get("stack_trace")), scope_of(node), marks, outer.draw if outer else 0)

    def draw(self, node: FxNode, name: str, tag: Tag) -> int | None:
        """The ordinal of a random node: the tag's, plus one for every draw that its call has made before."""
        tags = getattr(node.target, "tags", ())
        attention = "scaled_dot_product_attention" in name and float(_attention_dropout(node)) > 0
        if torch.Tag.nondeterministic_seeded not in tags and not attention:
            return None
        before = self.used.get(id(tag), 0)
        self.used[id(tag)] = before + 1
        return tag.draw + before

    def literal(self, value: Any, module: GraphModule | None = None) -> Any:
        """An argument in the neutral graph's words."""
        if isinstance(value, FxNode):
            if value.op == "get_attr" and module is not None:
                body = getattr(module, str(value.target))
                if isinstance(body, GraphModule):
                    return self.graph(body)
            return self.values.get(value, Ref(-1))
        if isinstance(value, list | tuple | torch.Size):
            return tuple(self.literal(item, module) for item in value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value.node.maybe_as_int() if isinstance(value, torch.SymInt) else str(value)
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return str(value).removeprefix("torch.")
        if isinstance(value, torch.device):
            return value.type
        return value

    def graph(self, module: GraphModule, surroundings: Tag | None = None) -> Graph:
        """A sub-graph (a branch, a loop body, a joint graph) with its own inputs and outputs."""
        inner = _Maker(self.tags, self.kept, bad=self.bad, used=self.used, count=self.count)
        inner.surroundings = surroundings or self.surroundings
        inputs = []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                item = Input(self.number(), "batch", node.name, self.aval(node))
                inputs.append(item)
                inner.values[node] = Ref(item.id)
        inner.body(module)
        given = next(n for n in module.graph.nodes if n.op == "output").args[0]
        given = given if isinstance(given, tuple | list) else (given,)
        outputs = tuple(Output("aux", str(i), inner.literal(v)) for i, v in enumerate(given))
        return Graph(tuple(inputs), tuple(inner.nodes), outputs)

    def function(self, call: Kept, node: FxNode, tag: Tag) -> tuple[Any, ...]:
        """Arguments of ``detente.function``: the joint graph, how many outputs come first in it, the
        tensors."""
        tensors = node.args[0]
        assert isinstance(tensors, list | tuple)
        inputs = [t.meta["val"] for t in tensors if isinstance(t, FxNode)]
        outputs = list(node.meta["val"])
        joint = self.graph(functions.trace(call, inputs, outputs), tag)
        return (joint, len(outputs), tuple(self.literal(t) for t in tensors))


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"python.{getattr(target, '__name__', target)}"


def _attention_dropout(node: FxNode) -> Any:
    return node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)


def _aval(value: Any) -> Aval:
    """``Aval`` of a fake tensor, or of a Python number that the program computes (``.item()``)."""
    if isinstance(value, torch.Tensor):
        return aval(value)
    kinds = {torch.SymInt: "int64", torch.SymFloat: "float64", torch.SymBool: "bool"}
    kinds |= {bool: "bool", int: "int64", float: "float64"}
    return Aval((), kinds.get(type(value), "float64"))


def _out(value: Any) -> Aval | tuple[Aval | None, ...] | None:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return tuple(None if v is None else _aval(v) for v in value)
    return _aval(value)


def _symbolic(value: Any) -> str:
    """The shape, when it depends on values (an unbacked symbol), else an empty string."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, torch.Tensor) and any(not isinstance(n, int) for n in item.shape):
            return str(list(item.shape))
    return ""
