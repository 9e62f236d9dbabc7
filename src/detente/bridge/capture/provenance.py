"""Every node of the exported program gets a tag before it is decomposed: line, module path, marks, draw
ordinals.

The decomposition copies ``node.meta["custom"]`` to whatever a node becomes, so a tag survives
functionalisation, inlining of no_grad and autocast regions, and the removal of dead random calls.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from detente.bridge.capture.draws import draws
from detente.bridge.capture.markers import LEAF, TURN, is_marker
from detente.bridge.capture.regions import REGION
from detente.bridge.capture.weights import Weights
from detente.bridge.capture.where import where
from detente.bridge.graph import Where
from detente.bridge.private import HigherOrderOperator, OpOverload, pytree
from detente.bridge.refusal import Reason, Refused
from detente.programs.scope import scope_name

TAG = "detente_tag"
_BETWEEN = "it is trained: write it between two steps, where the step takes it over, or freeze it"


@dataclass(frozen=True)
class Tag:
    """``draw`` is the ordinal of the node's first random call; decomposing may make several of one. ``keeps``: the node
    writes, under no_grad, the whole of a tensor that carries a gradient, and is functionally this operator: the result
    is the written value with the gradient that the tensor had."""

    where: Where
    scope: str
    marks: tuple[tuple[Any, ...], ...]
    draw: int
    keeps: str = ""


@dataclass
class Tags:
    rows: list[Tag] = field(default_factory=list)
    draws: int = 0
    # of the writes under no_grad, those that the functional program has as one operator
    met: list[Tag] = field(default_factory=list)

    def of(self, node: FxNode) -> Tag | None:
        number = node.meta.get("custom", {}).get(TAG)
        return None if number is None else self.rows[number]

    def lost(self) -> list[Reason]:
        """Writes under no_grad whose gradient the functional program cannot keep: they came apart, or nobody reads
        what they wrote."""
        rows = [tag for tag in self.rows if tag.keeps and not any(tag is met for met in self.met)]
        return [hidden_write(tag.keeps, tag.where) for tag in rows]


def tag(exported: Any, held: Weights) -> Tags:
    """Tag every node, sub-graphs included, in eager order. Raises Refused for writes that would change a
    gradient in a way the functional program cannot say, and for writes to parameters and to the batch."""
    walk = _Walk(held)
    for spec, node in zip(
        exported.graph_signature.input_specs, _placeholders(exported.graph_module), strict=True
    ):
        target = (spec.target or "").removeprefix("model.")
        walk.kinds[node] = (spec.kind.name, target)
        if spec.kind.name == "PARAMETER" and held.canonical(target) in held.trainable:
            walk.carrying.add(node)
    walk.walk(exported.graph_module, True)
    if walk.bad:
        raise Refused(walk.bad)
    return walk.tags


def scope_of(node: FxNode) -> str:
    """The module path of a node, without the wrapper's own name, as the scope of its operations is called."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    path = path.removeprefix("L['self'].")
    if path == "model" or path.startswith("model."):
        path = path.removeprefix("model").removeprefix(".")
    return scope_name(path)


def _placeholders(module: GraphModule) -> list[FxNode]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


@dataclass(frozen=True)
class _Region:
    """Where a region operator keeps its bodies and what it feeds them: ``bodies`` positions of the
    sub-graphs, ``operands`` position of the first operand (or list of operands), ``repeats`` whether a body
    runs more than once."""

    bodies: tuple[int, ...]
    operands: int
    repeats: bool = False


_REGIONS = {
    "wrap_with_set_grad_enabled": _Region((1,), 2),
    "wrap_with_autocast": _Region((4,), 5),
    "cond": _Region((1, 2), 3),
    "scan": _Region((0,), 1, True),
    "while_loop": _Region((0, 1), 2, True),
    "map_impl": _Region((0,), 1, True),
    "associative_scan": _Region((0,), 1, True),
}


@dataclass
class _Walk:
    """One pass over the nodes, following which memory carries a gradient through views and writes."""

    held: Weights
    tags: Tags = field(default_factory=Tags)
    carrying: set[FxNode] = field(default_factory=set)
    kinds: dict[FxNode, tuple[str, str]] = field(default_factory=dict)  # placeholder -> (kind, torch's name)
    origin: dict[FxNode, FxNode] = field(default_factory=dict)  # a view -> the owner of its memory
    # shares the owner's memory, not its gradient
    detached: dict[FxNode, FxNode] = field(default_factory=dict)
    views: set[FxNode] = field(default_factory=set)  # those that are not the owner itself under another name
    results: dict[FxNode, tuple[Any, ...]] = field(
        default_factory=dict
    )  # region operator -> what its body returns
    bad: list[Reason] = field(default_factory=list)

    def owner(self, node: FxNode) -> FxNode:
        return self.origin.get(node, node)

    def memory(self, owner: FxNode) -> FxNode:
        """The owner of the memory that a detached tensor shares."""
        while owner in self.detached:
            owner = self.detached[owner]
        return owner

    def rename(self, node: FxNode, same: FxNode) -> None:
        """``node`` is ``same``: the border of a region, or the result of a write."""
        self.origin[node] = self.owner(same)
        if same in self.views:
            self.views.add(node)

    def carries(self, node: Any) -> bool:
        return isinstance(node, FxNode) and self.owner(node) in self.carrying

    def walk(self, module: GraphModule, grad: bool) -> None:
        for node in module.graph.nodes:
            if node.op != "call_function":
                continue
            if isinstance(node.target, HigherOrderOperator):
                self.enter(module, node, grad)
            elif (
                node.target is not operator.getitem
            ):  # a region's getitem would overwrite the tag of its source
                self.tag(node, grad)
            self.follow(node, grad)

    def enter(self, module: GraphModule, node: FxNode, grad: bool) -> None:
        """Walk the bodies of a region operator, where eager torch runs them: here."""
        name = node.target.name() if isinstance(node.target, HigherOrderOperator) else ""
        row = _REGIONS.get(name, _Region(tuple(range(len(node.args))), len(node.args)))
        if name == "wrap_with_set_grad_enabled":
            grad = bool(node.args[0])
        operands = pytree.tree_leaves(node.args[row.operands :])
        before = self.tags.draws
        for position in row.bodies:
            argument = node.args[position]
            body: Any = getattr(module, str(argument.target), None) if isinstance(argument, FxNode) else None
            if not isinstance(body, GraphModule):
                continue
            for inner, outer in zip(_placeholders(body), operands, strict=False):
                if isinstance(outer, FxNode):
                    self.rename(inner, outer)
            self.walk(body, grad)
            output: Any = next(n for n in body.graph.nodes if n.op == "output").args[0]
            self.results[node] = tuple(output) if isinstance(output, tuple | list) else (output,)
        if row.repeats and self.tags.draws != before:
            what = f"the body of {name} draws random numbers, and every turn would draw the same ones"
            line = where(node.meta.get("stack_trace"))
            hint = "draw them before the loop and pass them in as one of its inputs"
            self.bad.append(Reason("control-flow", what, line, hint))

    def tag(self, node: FxNode, grad: bool) -> None:
        custom = dict(node.meta.get("custom") or {})
        marks = tuple(("checkpoint", n) for n in custom.get(REGION, ()))
        marks = marks if grad else (*marks, ("no_grad",))
        custom[TAG] = len(self.tags.rows)
        node.meta["custom"] = custom
        self.tags.rows.append(
            Tag(where(node.meta.get("stack_trace")), scope_of(node), marks, self.tags.draws)
        )
        if isinstance(node.target, OpOverload):
            self.tags.draws += draws(node.target, node.args, node.kwargs)

    def follow(self, node: FxNode, grad: bool) -> None:
        if node.target is operator.getitem and node.args[0] in self.results:
            inner = self.results[node.args[0]][node.args[1]]
            if isinstance(inner, FxNode):
                self.rename(node, inner)
            return
        gradient = grad and any(self.carries(n) for n in node.all_input_nodes)
        schema = getattr(node.target, "_schema", None)
        written = _written(node, schema) if schema else []
        if node.target is torch.ops.aten.detach_.default:
            self.detach_in_place(node, written[0], grad)
        elif written:
            for one in written:
                self.write(node, one, grad, gradient)
        elif schema is not None and (alias := _viewed(node, schema)) is not None:
            if node.target is torch.ops.aten.detach.default:
                self.detached[node] = self.owner(alias)
                return
            self.origin[node] = self.owner(alias)
            self.views.add(node)
        elif gradient and not _without_gradient(node):
            self.carrying.add(node)

    def stands_for_another(self, owner: FxNode) -> bool:
        """Whether in eager torch a write to it is a write to the batch, to a buffer or to a view: a marker's result has
        memory of its own here."""
        if owner.target is not operator.getitem or not isinstance(marker := owner.args[0], FxNode):
            return False
        if not is_marker(marker, LEAF):
            return is_marker(marker, TURN)
        source = marker.args[0][owner.args[1]]  # type: ignore[index]
        return source in self.views or self.memory(self.owner(source)) in self.kinds

    def write_parameter(self, node: FxNode, name: str, grad: bool, gradient: bool, line: Where) -> None:
        """A frozen one (a teacher inside of the model) is written as a buffer is, as long as it stays frozen."""
        if self.held.canonical(name) not in self.held.trainable:
            if gradient:
                what = (
                    f"forward writes into the frozen parameter {name} what carries a gradient ({node.target})"
                )
                self.bad.append(
                    Reason("parameter", what, line, "write it under torch.no_grad(), or detach it")
                )
            return
        code, hint = ("leaf-inplace", "") if grad else ("parameter", _BETWEEN)
        self.bad.append(Reason(code, f"forward writes parameter {name} in place ({node.target})", line, hint))

    def write(self, node: FxNode, written: FxNode, grad: bool, gradient: bool) -> None:
        self.rename(node, written)
        owner = self.owner(written)
        kind, name = self.kinds.get(owner, ("", ""))
        line = where(node.meta.get("stack_trace"))
        if kind == "PARAMETER":
            self.write_parameter(node, name, grad, gradient, line)
        elif kind == "BUFFER" and REGION in (node.meta.get("custom") or {}):
            what = (
                f"{name} is written inside of torch.utils.checkpoint: eager PyTorch runs that part again in the "
                "backward pass, and writes it twice"
            )
            self.bad.append(
                Reason("held-tensor", what, line, "leave what writes buffers (BatchNorm) out of it")
            )
        elif "USER_INPUT" in (kind, self.kinds.get(self.memory(owner), ("",))[0]):
            what = f"forward writes the batch in place ({node.target})"
            self.bad.append(Reason("batch", what, line, "clone the tensor first"))
        elif self.stands_for_another(owner):
            what = f"{node.target} writes what is differentiated, or one turn of torch.vmap: a tensor outside, too"
            self.bad.append(Reason("transform", what, line, "clone it first, or compute out of place"))
        elif self.memory(owner) is not owner and self.memory(owner) in self.carrying:
            kind, name = self.kinds.get(self.memory(owner), ("", ""))
            if kind == "PARAMETER":
                self.write_parameter(node, name, False, gradient, line)
            else:
                self.bad.append(hidden_write(f"{node.target} of a detached tensor", line))
        elif self.memory(owner) is not owner and gradient:
            # The base takes the value and no gradient; who reads the detached name takes both.
            if _only_written(node) and _only_written(written):
                number = node.meta["custom"][TAG]
                row = self.tags.rows[number]
                self.tags.rows[number] = replace(row, marks=(*row.marks, ("no_grad",)))
            else:
                what = (
                    f"{node.target} writes what carries a gradient into a detached tensor that is read again"
                )
                self.bad.append(Reason("no-grad-inplace", what, line, "write it under torch.no_grad()"))
        elif not grad and owner in self.carrying:
            if written not in self.views and _is_tensor(node):
                number = node.meta["custom"][TAG]
                self.tags.rows[number] = replace(self.tags.rows[number], keeps=_functional(node))
            else:
                self.bad.append(hidden_write(node.target, line))
        elif gradient:
            self.carrying.add(owner)

    def detach_in_place(self, node: FxNode, written: FxNode, grad: bool) -> None:
        """``torch.tensor(x)`` ends with one, of what carries nothing. The functional program would forget another."""
        self.rename(node, written)
        if grad and self.owner(written) in self.carrying:
            what = "detach_() of a tensor that carries a gradient"
            line = where(node.meta.get("stack_trace"))
            self.bad.append(Reason("no-grad-inplace", what, line, "write y = y.detach()"))


def hidden_write(target: Any, line: Where) -> Reason:
    what = f"{target} writes, hidden from autograd, a tensor that carries a gradient"
    return Reason("no-grad-inplace", what, line)


def _functional(node: FxNode) -> str:
    """``aten.clamp.default`` for ``aten.clamp_.default``."""
    name, _, overload = str(node.target).rpartition(".")
    return f"{name.removesuffix('_')}.{overload}"


def _without_gradient(node: FxNode) -> bool:
    """Whole numbers, and numbers that have left the tensors (``x.item()``), carry none."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return not (value.is_floating_point() or value.is_complex())
    return isinstance(value, torch.SymFloat | torch.SymInt | torch.SymBool | float | int)


def _only_written(node: FxNode) -> bool:
    """Whether nobody reads ``node``, a name of some memory, but to write that memory."""
    return all(
        node in _written(user, schema) and _only_written(user)
        if (schema := getattr(user.target, "_schema", None))
        else False
        for user in node.users
    )


def _is_tensor(node: FxNode) -> bool:
    """Whether an operator gives one tensor (a ``_foreach_`` gives none)."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def _written(node: FxNode, schema: Any) -> list[FxNode]:
    """The tensors that an in-place operator writes, those of a list (``torch._foreach_mul_``) among them."""
    found: list[FxNode] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            found += [
                v for v in (value if isinstance(value, list | tuple) else (value,)) if isinstance(v, FxNode)
            ]
    return found


def _viewed(node: FxNode, schema: Any) -> FxNode | None:
    """The tensor that a view operator looks at."""
    if not any(r.alias_info is not None for r in schema.returns):
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and position < len(node.args):
            value = node.args[position]
            if isinstance(value, FxNode):
                return value
    return None
