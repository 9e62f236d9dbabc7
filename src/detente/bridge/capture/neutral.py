"""From torch's exported, functional program to the neutral graph."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from detente.bridge.arrays import to_numpy
from detente.bridge.capture import functions, parts, ragged, strides
from detente.bridge.capture.batch import Layout, aval
from detente.bridge.capture.data import takes_gradient
from detente.bridge.capture.functions import Kept
from detente.bridge.capture.provenance import Tag, Tags, scope_of
from detente.bridge.capture.ragged import Ragged
from detente.bridge.capture.weights import Weights, identity
from detente.bridge.capture.where import where
from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref, Where
from detente.bridge.private import FakeTensor, HigherOrderOperator, OpOverload
from detente.bridge.refusal import Reason, Refused, refuse

KEEP = "detente.keep_gradient"  # (old, new): the value of the second with the gradient of the first

# operators that only check, or only pass a value on: nothing to compute
_CHECKS = ("_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size")


def convert(
    exported: Any,
    tags: Tags,
    held: Weights,
    layout: Layout,
    kept: dict[str, Kept],
    outside: Mapping[tuple[object, ...], str],
) -> Graph:
    """The neutral graph of a functional ``ExportedProgram``. ``outside`` names tensors that the loss holds by their
    ``identity``: they are inputs, as buffers are. Raises Refused with every reason found."""
    maker = _Maker(tags, kept)
    signature = exported.graph_signature
    module: GraphModule = exported.graph_module
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    paths = iter(layout.paths)
    constants, inputs = maker.constants, maker.inputs
    own = {identity(tensor): name for name, tensor in held.tensors.items()}
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        kind, target = spec.kind.name, (spec.target or "").removeprefix("model.")
        if kind == "CONSTANT_TENSOR" and identity(exported.constants[spec.target]) in own:
            # The module's own tensor, from a place that was not found (a tuple): torch.export knows it by the module's
            # table alone.
            kind, target = "PARAMETER", own[identity(exported.constants[spec.target])]
        if kind in ("PARAMETER", "BUFFER"):
            name = held.canonical(target)
            if name not in held.tensors:
                raise refuse("export", f"the exported program reads {target}, which the module does not name")
            known = next((i for i in inputs if i.name == name and i.kind != "batch"), None)
            if known is None:  # a tied weight comes once per name: all names read the first input
                role = "parameter" if name in held.parameters else "buffer"
                known = Input(maker.number(), role, name, aval(held.tensors[name]), name in held.trainable)
                inputs.append(known)
            maker.values[node] = maker.of_own(node, known, _object(exported, spec.target))
            continue
        if kind == "USER_INPUT":
            item = Input(maker.number(), "batch", next(paths), maker.aval(node))
        elif kind == "CONSTANT_TENSOR" and identity(exported.constants[spec.target]) in outside:
            name = outside[identity(exported.constants[spec.target])]
            known = next((i for i in inputs if i.name == name), None)
            if known is None:
                known = Input(maker.number(), "buffer", name, maker.aval(node))
                inputs.append(known)
            maker.values[node] = Ref(known.id)
            continue
        elif kind == "CONSTANT_TENSOR":
            item = Input(maker.number(), "constant", target, maker.aval(node))
            constants[target] = to_numpy(exported.constants[spec.target])
        elif kind == "CUSTOM_OBJ" and "Generator" in str(node.meta.get("val")):
            place = next((where(user.meta.get("stack_trace")) for user in node.users), None)
            raise refuse("generator", "the step draws from a torch.Generator of its own", place)
        else:
            raise refuse("export", f"an input of kind {kind} ({spec.target})")
        inputs.append(item)
        maker.values[node] = Ref(item.id)
    maker.body(module)
    outputs: list[Output] = []
    given = next(n for n in module.graph.nodes if n.op == "output").args[0]
    for value, spec in zip(given, signature.output_specs, strict=True):
        kind = spec.kind.name
        name = held.canonical((spec.target or "").removeprefix("model."))
        if kind == "BUFFER_MUTATION" or (kind == "PARAMETER_MUTATION" and name not in held.trainable):
            outputs.append(Output("buffer", name, maker.written(value, held.tensors[name])))
        elif kind == "USER_OUTPUT":
            role = "aux" if any(o.kind == "loss" for o in outputs) else "loss"
            outputs.append(Output(role, role, maker.literal(value)))
        elif kind == "PARAMETER_MUTATION":
            maker.bad.append(Reason("parameter", f"forward writes parameter {name}"))
        else:
            maker.bad.append(
                Reason("batch", f"forward writes the batch in place ({kind})", None, "clone it first")
            )
    maker.bad += tags.lost()
    parts.without_turns(maker, outputs)
    if maker.bad:
        raise Refused(maker.bad)
    return Graph(tuple(inputs), tuple(maker.nodes), tuple(outputs), constants)


def _object(exported: Any, target: str) -> torch.Tensor | None:
    """What the user's code read where the program reads ``target``: of one memory there may be several."""
    return exported.constants.get(target, exported.state_dict.get(target))


def _first(node: FxNode) -> FxNode:
    assert isinstance(node.args[0], FxNode)
    return node.args[0]


@dataclass
class _Maker:
    """Numbers values and turns fx nodes into neutral ones."""

    tags: Tags
    kept: dict[str, Kept]
    values: dict[FxNode, Any] = field(
        default_factory=dict
    )  # fx node -> Ref, Ragged, number, or tuple of them
    inputs: list[Input] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    bad: list[Reason] = field(default_factory=list)
    used: dict[int, int] = field(default_factory=dict)  # tag -> draws already given to its nodes
    count: list[int] = field(default_factory=lambda: [0])
    refused: set[FxNode] = field(default_factory=set)
    surroundings: Tag | None = None  # of the node that a sub-graph belongs to

    def number(self) -> int:
        self.count[0] += 1
        return self.count[0]

    def aval(self, node: FxNode) -> Aval:
        return _aval(node.meta.get("val"))

    def of_own(self, node: FxNode, known: Input, read: torch.Tensor | None) -> Ref:
        """A tensor of the module's. Read by another object of its memory that takes no gradient (``weight.detach()`` in
        a closure, an entry of a ``state_dict``, a teacher's ``p.data = q.data``), it has the weight's value and leads
        no gradient to it."""
        if not known.trainable or read is None or takes_gradient(read):
            return Ref(known.id)
        return self.emit(node, "aten.detach.default", (Ref(known.id),), known.aval)

    def body(self, module: GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.call(module, node)
            elif node.op == "get_attr":
                self.attribute(module, node)

    def call(self, module: GraphModule, node: FxNode) -> None:
        if node.target is operator.getitem and isinstance(node.args[0], FxNode):
            whole = self.values[node.args[0]]
            index = node.args[1]
            if isinstance(whole, Ragged):  # refused
                self.values[node] = whole
            else:
                self.values[node] = Ref(whole.id, index) if isinstance(whole, Ref) else whole[index]
            return
        name = _name(node.target)
        if name.split(".")[1:2] and name.split(".")[1] in _CHECKS:
            return
        if self.ragged(name, node):
            return
        tag = self.tag(node)
        args = tuple(self.literal(a, module) for a in node.args)
        kwargs = tuple((k, self.literal(v, module)) for k, v in node.kwargs.items())
        out = _out(node.meta.get("val"))
        if name == "aten._assert_scalar.default":
            if not isinstance(args[0], Ref):
                return  # settled while the graph was captured
            args, kwargs = args[:1], ()  # torch's message numbers its symbols: no two layers would be alike
            tag = replace(tag, where=self.asked_at(node))
        if name in strides.STRIDED:
            self.strided(name, node, args)
            return
        if name in parts.MARKERS:
            self.values[node] = parts.MARKERS[name](parts.Made(self, tag.where, tag.scope, tag.marks), *args)
            return
        if name in self.kept:
            name, args = "detente.function", self.function(self.kept[name], node, tag)
        draw = self.draw(node, name, tag)
        made = Node(self.number(), name, args, kwargs, out, tag.where, tag.scope, draw, tag.marks)
        self.nodes.append(made)
        self.values[node] = Ref(made.id)
        if tag.keeps == name and out == _out(_first(node).meta.get("val")):
            self.tags.met.append(tag)
            quiet = tuple(m for m in tag.marks if m != ("no_grad",))
            both = (args[0], Ref(made.id))
            kept = Node(self.number(), KEEP, both, (), out, tag.where, tag.scope, None, quiet)
            self.nodes.append(kept)
            self.values[node] = Ref(kept.id)

    def strided(self, name: str, node: FxNode, args: tuple[Any, ...]) -> None:
        """``as_strided`` on the tensor in the order of its memory."""
        source: Any = node.args[0]
        value = source.meta["val"]
        order, found = strides.memory_order(value), strides.places(node)
        if order is None or found is None:
            what = f"{name} reads memory in a way that the tensor's own elements do not tell"
            self.bad.append(Reason("export", what, self.tag(node).where, "use unfold, or index the tensor"))
            self.values[node] = Ref(-1)
            return
        x, kind = args[0], aval(value).dtype
        if order != tuple(range(value.ndim)):
            laid = Aval(tuple(value.shape[d] for d in order), kind)
            x = self.emit(node, "aten.permute.default", (x, order), laid)
        where_to = tuple(tuple(part) if isinstance(part, list) else part for part in found)
        if "scatter" not in name:
            self.values[node] = self.emit(node, "aten.as_strided.default", (x, *where_to), self.aval(node))
            return
        laid = Aval(tuple(value.shape[d] for d in order), kind)
        x = self.emit(node, name, (x, args[1], *where_to), laid)
        back = tuple(order.index(d) for d in range(value.ndim))
        self.values[node] = self.emit(node, "aten.permute.default", (x, back), self.aval(node))

    def emit(
        self,
        node: FxNode,
        op: str,
        args: tuple[Any, ...],
        out: Aval,
        kwargs: tuple[tuple[str, Any], ...] = (),
        quiet: bool = False,
    ) -> Ref:
        """A neutral node that no fx node stands for; it belongs to where ``node`` is. ``quiet``: no gradient."""
        tag = self.tag(node)
        marks = (*tag.marks, ("no_grad",)) if quiet and ("no_grad",) not in tag.marks else tag.marks
        made = Node(self.number(), op, args, kwargs, out, tag.where, tag.scope, None, marks)
        self.nodes.append(made)
        return Ref(made.id)

    def ragged(self, name: str, node: FxNode) -> bool:
        """Whether ``node`` makes or reads a tensor of unknown length; if so, it is dealt with here."""

        symbolic = _symbolic(node.meta.get("val"))
        held = [v for n in node.all_input_nodes if isinstance(v := self.values.get(n), Ragged)]
        quiet = ("no_grad",) in self.tag(node).marks or any(r.quiet for r in held)

        def emit(op: str, args: tuple[Any, ...], out: Aval) -> Ref:
            return self.emit(node, op, args, out, quiet=quiet)

        first = node.args[0] if node.args else None
        if len(held) == 1 and isinstance(first, FxNode) and self.values.get(first) is held[0]:
            value = ragged.read(name, node, held[0], emit)
            if value is not None:
                self.values[node] = replace(value, quiet=quiet) if isinstance(value, Ragged) else value
                return True
        if not held and symbolic:
            value = ragged.begun(name, node, self.literal, emit)
            if value is not None:
                self.values[node] = replace(value, quiet=quiet) if isinstance(value, Ragged) else value
                return True
        if not held and not symbolic:
            return False
        for known in held:
            self.refuse(known)
        if symbolic and not held:
            self.refuse(Ragged(node))
        self.values[node] = Ragged(node, refused=True)
        return True

    def refuse(self, known: Ragged) -> None:
        """Somebody reads what the program cannot have; what came of that is not said again."""
        if known.refused or known.made in self.refused:
            return
        self.refused.add(known.made)
        size = _symbolic(known.made.meta.get("val"))
        what = f"{_name(known.made.target)} gives a result of size {size}"
        self.bad.append(Reason("dynamic-shape", what, self.tag(known.made).where))

    def written(self, node: FxNode, target: torch.Tensor) -> Any:
        """A buffer's new value in the buffer's own dtype: a write rounds (BatchNorm's statistics in bfloat16)."""
        value, kind = self.literal(node), str(target.dtype).removeprefix("torch.")
        if self.aval(node).dtype == kind:
            return value
        return self.emit(node, "aten._to_copy.default", (value,), aval(target), (("dtype", kind),))

    def attribute(self, module: GraphModule, node: FxNode) -> None:
        """A tensor that the program itself holds (``torch.tensor(0.5)`` inside an autograd.Function): a constant,
        named by its content, since two layers may have different ones under one name."""
        found = operator.attrgetter(str(node.target))(module)
        if isinstance(found, GraphModule):
            return
        found = getattr(found, "constant", found) if isinstance(found, FakeTensor) else found
        if not isinstance(found, torch.Tensor) or isinstance(found, FakeTensor):
            what = f"the program reads an attribute, {node.target}"
            self.bad.append(Reason("export", what, self.tag(node).where))
            return
        array = to_numpy(found)
        name = f"{node.target}:{hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
        self.inputs.append(Input(self.number(), "constant", name, aval(found)))
        self.constants[name] = array
        self.values[node] = Ref(self.inputs[-1].id)

    def asked_at(self, node: FxNode) -> Where:
        """The line of a check. torch puts checks in by itself, without a line: then the nearest of what it reads."""
        rows = [node]
        for near in rows:
            found = self.tag(near).where
            if found.file != "?" or len(rows) > 100:
                return found
            rows += near.all_input_nodes
        return Where()

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
        # a node inside an autograd.Function has no tag of its own: all of them share their call's
        owner = id(self.tags.of(node) or self.surroundings or tag)
        before = self.used.get(owner, 0)
        self.used[owner] = before + 1
        return tag.draw + before

    def literal(self, value: Any, module: GraphModule | None = None) -> Any:
        """An argument in the neutral graph's words."""
        if isinstance(value, FxNode):
            if value.op == "get_attr" and module is not None:
                body = getattr(module, str(value.target))
                if isinstance(body, GraphModule):
                    return self.graph(body)
            found = self.values.get(value, Ref(-1))
            if isinstance(found, Ragged):
                self.refuse(found)
                return Ref(-1)
            return found
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
        inner = _Maker(
            self.tags, self.kept, bad=self.bad, used=self.used, count=self.count, refused=self.refused
        )
        inner.surroundings = surroundings or self.surroundings
        for node in module.graph.nodes:
            if node.op == "placeholder":
                item = Input(self.number(), "batch", node.name, self.aval(node))
                inner.inputs.append(item)
                inner.values[node] = Ref(item.id)
        inner.body(module)
        given = next(n for n in module.graph.nodes if n.op == "output").args[0]
        given = given if isinstance(given, tuple | list) else (given,)
        outputs = tuple(Output("aux", str(i), inner.literal(v)) for i, v in enumerate(given))
        return Graph(tuple(inner.inputs), tuple(inner.nodes), outputs, inner.constants)

    def function(self, call: Kept, node: FxNode, tag: Tag) -> tuple[Any, ...]:
        """Arguments of ``detente.function``: the joint graph, how many outputs come first in it, the
        tensors."""
        tensors = node.args[0]
        assert isinstance(tensors, list | tuple)
        inputs = [t.meta["val"] for t in tensors if isinstance(t, FxNode)]
        outputs = list(node.meta["val"])
        read = {user.args[1] for user in node.users if user.users}
        unused = frozenset(range(len(outputs))) - read
        joint = self.graph(functions.trace(call, inputs, outputs, unused), tag)
        return (joint, len(outputs), tuple(self.literal(t) for t in tensors))


def _name(target: Any) -> str:
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.name()}"
    if isinstance(target, OpOverload):
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
