"""Parts of a captured program that a marker names by their ends become sub-graphs: what lies between the inputs and the
outputs of a derivative, and one turn of ``torch.vmap``.

The nodes of a part stay where they are, too. What only the part needs is dead there and falls to ``without_dead``;
what both need XLA computes once. A random call keeps its ordinal in the part, so it draws the same numbers; writes to
buffers are outputs of the whole program, and no part writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from detente.bridge.capture.history import DIFFERENTIABLE, carries
from detente.bridge.capture.markers import DERIVATIVE, LEAF, TURN, TURNS, node_name
from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref, Where, node_refs, refs
from detente.bridge.refusal import Reason

FUNCTION = "detente.function"  # capture/functions.py
PULL = "detente.pull"  # the backward that the user wrote
DERIVED = "detente.derivative"


class Maker(Protocol):
    """What this file asks of the one that makes the graph."""

    nodes: list[Node]
    inputs: list[Input]
    bad: list[Reason]

    def number(self) -> int: ...


@dataclass(frozen=True)
class Made:
    """What a marker's node becomes: its line, module, marks."""

    maker: Maker
    where: Where
    scope: str
    marks: tuple[tuple[Any, ...], ...]

    def node(self, op: str, args: tuple[Any, ...], out: tuple[Aval, ...]) -> Node:
        made = Node(self.maker.number(), op, args, (), out, self.where, self.scope, None, self.marks)
        self.maker.nodes.append(made)
        return made

    def refused(self, what: str) -> Ref:
        self.maker.bad.append(Reason("transform", what, self.where))
        return Ref(-1)


def _reached(nodes: Iterable[Node], starts: set[Ref], gradient: bool) -> set[int]:
    """Nodes that depend on the starts; ``gradient``: the way autograd sees it."""
    found: set[int] = set()
    for node in nodes:
        if any(ref in starts or ref.id in found for ref in node_refs(node)):
            outs = range(len(node.out)) if isinstance(node.out, tuple) else [None]
            if not gradient or any(carries(node, Ref(node.id, i)) for i in outs):
                found.add(node.id)
    return found


@dataclass(frozen=True)
class Part:
    """``graph`` takes the starts, then ``outer``; ``met`` are the starts that its outputs depend on."""

    graph: Graph
    outer: tuple[Ref, ...]
    met: frozenset[Ref]


def part(maker: Maker, starts: Sequence[Ref], ends: Sequence[Any], gradient: bool) -> Part:
    """What lies between, everything else being an input of it."""
    begin = set(starts)
    reached = _reached(maker.nodes, begin, gradient)
    needed = {ref.id for ref in refs(tuple(ends)) if ref not in begin} & reached
    body: list[Node] = []
    for node in reversed(maker.nodes):
        if node.id in needed:
            body.append(node)
            needed |= {ref.id for ref in node_refs(node) if ref not in begin} & reached
    body.reverse()
    read = dict.fromkeys([*(r for n in body for r in node_refs(n)), *refs(tuple(ends))])
    outer = tuple(r for r in read if r not in begin and r.id not in needed)
    avals = _avals(maker, {r.id for r in (*starts, *outer)})
    inputs, renamed = [], {}
    for ref in (*starts, *outer):
        item = Input(maker.number(), "batch", f"{ref.id}", avals(ref))
        inputs.append(item)
        renamed[ref] = Ref(item.id)
    nodes = tuple(_rewired(n, renamed) for n in body)
    outputs = tuple(Output("aux", str(i), _renamed(e, renamed)) for i, e in enumerate(ends))
    return Part(Graph(tuple(inputs), nodes, outputs), outer, frozenset(r for r in starts if r in read))


def _avals(maker: Maker, ids: set[int]) -> Callable[[Ref], Aval]:
    made: dict[int, Any] = {i.id: i.aval for i in maker.inputs if i.id in ids}
    made |= {n.id: n.out for n in maker.nodes if n.id in ids}
    return lambda ref: made[ref.id] if ref.index is None else made[ref.id][ref.index]


def _rewired(node: Node, renamed: dict[Ref, Ref]) -> Node:
    kwargs = tuple((k, _renamed(v, renamed)) for k, v in node.kwargs)
    return replace(node, args=_renamed(node.args, renamed), kwargs=kwargs)


def _renamed(value: Any, renamed: dict[Ref, Ref]) -> Any:
    if isinstance(value, Ref):
        return renamed.get(value, value)
    return tuple(_renamed(v, renamed) for v in value) if isinstance(value, tuple) else value


def _outs(maker: Maker, values: Sequence[Ref]) -> tuple[Aval, ...]:
    of = _avals(maker, {v.id for v in values})
    return tuple(of(v) for v in values)


def _derivative(made: Made, outputs: Any, inputs: Any, cotangents: Any, create: bool) -> Any:
    """Inputs that depend on each other (``[x, h]`` where ``h`` comes of ``x``) are differentiated one at a time: the
    gradient of ``x`` goes through ``h``."""
    maker = made.maker
    marks = tuple(m for m in made.marks if m != ("no_grad",))
    made = replace(made, marks=marks if create else (*marks, ("no_grad",)))
    starts = list(dict.fromkeys(inputs))
    reached = _reached(maker.nodes, set(starts), True)
    groups = [[s] for s in starts] if any(s.id in reached for s in starts) else [starts]
    found: dict[Ref, Ref] = {}
    for group in groups:
        between = part(maker, group, outputs, True).graph.nodes
        if any(n.op not in (FUNCTION, PULL) and _holds_function(n.args) for n in between):
            return made.refused(
                "a derivative through an autograd.Function or a hook inside of torch.vmap or torch.cond"
            )
        own = {n.id for n in between if n.op == FUNCTION}
        sweep = _Sweep(made, tuple(group), [n for n in maker.nodes if n.id in own])
        found |= sweep.run(outputs, cotangents)
    if not all(i in found for i in inputs):
        return made.refused(
            "torch connects what is differentiated with what by, and the captured program does not"
        )
    return tuple(found[i] for i in inputs)


def _holds_function(value: Any) -> bool:
    """Whether sub-graphs in these arguments have gradients of the user's own."""
    if isinstance(value, Graph):
        return any(n.op == FUNCTION or _holds_function(n.args) for n in value.nodes)
    return isinstance(value, tuple) and any(_holds_function(v) for v in value)


@dataclass
class _Sweep:
    """A derivative by the chain rule, from one autograd.Function (or hook) to the next one before it.

    Such a gradient need not be linear (a clipped one), and torch runs it once, on all that comes to the value. So
    what a derivative reads of a Function are its results in the program itself; a second evaluation would split what
    comes to them. Between two of them one ``detente.derivative`` node does."""

    made: Made
    starts: tuple[Ref, ...]
    functions: list[Node]
    totals: dict[Ref, Ref] = field(default_factory=dict)

    def run(self, outputs: Any, cotangents: Any) -> dict[Ref, Ref]:
        self.spread(tuple(outputs), tuple(cotangents), len(self.functions))
        for position in reversed(range(len(self.functions))):
            node = self.functions[position]
            joint, count, tensors = node.args
            results = tuple(Ref(node.id, i) for i in range(count))
            given = tuple(self.totals.get(r) for r in results)
            if all(g is None for g in given):
                continue
            pull = self.made.node(
                PULL, (joint, count, tensors, results, given), _outs(self.made.maker, tensors)
            )
            back = [
                (t, Ref(pull.id, i))
                for i, (t, aval) in enumerate(zip(tensors, _outs(self.made.maker, tensors), strict=True))
                if aval.dtype.startswith(DIFFERENTIABLE)
            ]
            self.spread(tuple(t for t, _ in back), tuple(g for _, g in back), position)
        return {start: self.totals[start] for start in self.starts if start in self.totals}

    def spread(self, ends: tuple[Any, ...], cotangents: tuple[Any, ...], before: int) -> None:
        """Gradients of ``ends`` by the starts and by the results of the functions up to ``before``, added up."""
        maker = self.made.maker
        results = [Ref(n.id, i) for n in self.functions[:before] for i in range(n.args[1])]
        met = part(maker, [*self.starts, *results], ends, True).met
        by = [r for r in (*self.starts, *results) if r in met]
        if not by:
            return
        cut = part(maker, by, ends, True)
        avals = _outs(maker, by)
        node = self.made.node(DERIVED, (cut.graph, tuple(by), cut.outer, cotangents), avals)
        for i, (start, aval) in enumerate(zip(by, avals, strict=True)):
            self.totals[start] = self.add(self.totals.get(start), Ref(node.id, i), aval)

    def add(self, before: Ref | None, new: Ref, aval: Aval) -> Ref:
        if before is None:
            return new
        made = Node(
            self.made.maker.number(), "aten.add.Tensor", (before, new), (), aval, self.made.where, self.made.scope,
            None, self.made.marks,
        )  # fmt: skip
        self.made.maker.nodes.append(made)
        return Ref(made.id)


def _leaf(made: Made, tensors: Any) -> Any:
    node = made.node("detente.leaf", (tensors,), _outs(made.maker, tensors))
    return Ref(node.id)


def _turn(made: Made, tensors: Any, dims: Any, group: int) -> Any:
    shapes = zip(_outs(made.maker, tensors), dims, strict=True)
    out = tuple(replace(a, shape=(*a.shape[:d], *a.shape[d + 1 :])) for a, d in shapes)
    return Ref(made.node("detente.turn", (tensors, dims, group), out).id)


def _turns(made: Made, ys: Any, dims: Any, size: int, group: int) -> Any:
    maker = made.maker
    begin = next(n for n in maker.nodes if n.op == "detente.turn" and n.args[2] == group)
    starts = [Ref(begin.id, i) for i in range(len(begin.args[0]))]
    cut = part(maker, starts, ys, False)
    shapes = zip(_outs(maker, ys), dims, strict=True)
    out = tuple(replace(a, shape=(*a.shape[:d], size, *a.shape[d:])) for a, d in shapes)
    args = (cut.graph, begin.args[0], begin.args[1], cut.outer, dims)
    return Ref(made.node("detente.vmap", args, out).id)


# the node of a marker in the decomposed program -> what it becomes
MARKERS: dict[str, Callable[..., Any]] = {
    node_name(DERIVATIVE): _derivative,
    node_name(LEAF): _leaf,
    node_name(TURN): _turn,
    node_name(TURNS): _turns,
}


def without_turns(maker: Maker, outputs: Sequence[Output]) -> None:
    """Takes the single turns of ``vmap`` out of the program: what they compute is in the parts. Adds a reason where
    something of one turn goes elsewhere (a write to a buffer, a list outside)."""
    turns = {n.id for n in maker.nodes if n.op == "detente.turn"}
    if not turns:
        return
    found: set[int] = set()
    for node in maker.nodes:
        if node.id in turns or any(ref.id in found for ref in node_refs(node)):
            found.add(node.id)
            if node.out is None:
                maker.bad.append(Reason("transform", "a check on values inside of torch.vmap", node.where))
    for output in outputs:
        if any(ref.id in found for ref in refs(output.value)):
            what = f"torch.vmap lets a value of a single turn out, into {output.name}"
            at = next(n for n in maker.nodes if n.id in turns)
            maker.bad.append(
                Reason("transform", what, at.where, "return it from the function that is mapped")
            )
    maker.nodes[:] = [n for n in maker.nodes if n.id not in found]
