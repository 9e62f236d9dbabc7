"""``roll``: a graph whose repeats are ``detente.roll`` nodes.

A roll node is ``detente.roll(body, count, carries, stacked, invariants, draws=n)``:

- ``body`` is a ``Graph`` with inputs of kind ``carry``, ``stacked`` or ``scalar``, ``invariant``, in the order of the
  arguments, and outputs of kind ``carry`` (next values, in the order of the carries), then ``y``;
- ``carries``: initial values;
- ``stacked``: per input a tuple with the value of each iteration (``Ref``, or a Python scalar for kind ``scalar``), or
  one ``Ref`` to a value that is already stacked along its first axis (``stacks`` makes these);
- ``invariants``: values that every iteration reads;
- ``draws``: iteration k adds ``k * draws`` to every random ordinal of the body.

Its results are the last carries, then every y stacked along a new first axis. Later readers of one iteration's y
read ``aten.select.int(y, 0, k)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref
from detente.bridge.passes.substitute import refill, result_refs, rewire, substitute, value_refs
from detente.bridge.passes.unbound import SELECT
from detente.bridge.roll.find import LAYERS, Least, find
from detente.bridge.roll.scalars import liftable
from detente.bridge.roll.tape import Tape, read, regions_of, results
from detente.bridge.roll.wiring import Wiring

ROLL = "detente.roll"


def roll(graph: Graph, least: Least = LAYERS) -> Graph:
    """``graph`` with every repeat that is worth it as a loop, also inside the loops; itself when there is none.

    >>> step = lambda n: Node(n, "aten.sin.default", (Ref(n - 1),), (), Aval((2,), "float32"))
    >>> x = Input(0, "batch", "x", Aval((2,), "float32"))
    >>> looped = roll(Graph((x,), (step(1), step(2), step(3)), (Output("loss", "", Ref(3)),)), Least(nodes=1, saved=1))
    >>> [(n.op, n.args[1]) for n in looped.nodes]
    [('detente.roll', 3)]
    """
    tape = read(graph)
    loops = find(tape, least)
    if not loops:
        return graph
    nodes: list[Node] = []
    renamed: dict[Ref, Ref] = {}  # a value of a rolled node -> a value of the new graph
    fresh = _Fresh(graph)
    done = 0
    for loop in loops:
        nodes += [rewire(n, renamed) for n in graph.nodes[done : loop.start]]
        nodes += _fold(graph, tape, loop, renamed, fresh, least)
        done = loop.stop
    nodes += [rewire(n, renamed) for n in graph.nodes[done:]]
    outputs = tuple(replace(o, value=substitute(o.value, renamed)) for o in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


@dataclass
class _Fresh:
    """Ids that the graph does not use yet."""

    graph: Graph
    next: int = 0

    def __post_init__(self) -> None:
        self.next = 1 + max(v.id for v in (*self.graph.inputs, *self.graph.nodes))

    def __call__(self) -> int:
        self.next += 1
        return self.next - 1


@dataclass
class _Inputs:
    """The body's inputs by kind while it is built; equal sources share one input."""

    carry: dict[Any, int] = field(default_factory=dict)
    stacked: dict[Any, int] = field(default_factory=dict)
    invariant: dict[Any, int] = field(default_factory=dict)

    def __call__(self, kind: str, key: Any) -> tuple[str, int]:
        rows = getattr(self, kind)
        return kind, rows.setdefault(key, len(rows))


def _fold(
    graph: Graph, tape: Tape, loop: Wiring, renamed: dict[Ref, Ref], fresh: _Fresh, least: Least
) -> list[Node]:
    """The roll node of one loop and the selections that later readers need; fills ``renamed`` for them."""
    block = graph.nodes[loop.start : loop.start + loop.period]
    ref_of = value_refs(graph)
    aval_of = [a for n in block for a in results(n)]
    inputs = _Inputs()

    def carry(column: int, inits: tuple[int, ...]) -> tuple[str, int]:
        # the value of len(inits) rows before; what is nearer is carried first, so the chain is complete
        if len(inits) > 1:
            carry(column, inits[1:])
        return inputs("carry", (column, inits))

    def operand(slot: int) -> tuple[str, int]:
        kind, column, lag = loop.reads[slot]
        if kind == "local":
            return "local", column
        if kind == "carry":
            return carry(column, tuple(loop.sources[:lag, slot].tolist()))
        sources = tuple(loop.sources[:, slot].tolist())
        if len(set(sources)) == 1:
            return inputs("invariant", sources[0])
        return inputs("stacked", sources)

    # Body ids: inputs in the order carries, stacked, invariants; that order is known once all slots are read.
    placed: list[tuple[str, int]] = [operand(k) for k in range(len(loop.reads))]
    rows = [
        graph.nodes[loop.start + k * loop.period : loop.start + (k + 1) * loop.period]
        for k in range(loop.count)
    ]
    scalars: dict[tuple[int, int | str], tuple[str, int]] = {}
    for position, node in enumerate(block):
        for where, value in (*enumerate(node.args), *node.kwargs):
            if not liftable(node, where, value):
                continue
            each = tuple(_literal(row[position], where) for row in rows)
            if len({repr(v) for v in each}) > 1:
                # type and repr are part of the key: 1 and 1.0, 0.0 and -0.0 are one key to a dict
                scalars[position, where] = inputs(
                    "stacked", (type(value).__name__, each, tuple(map(repr, each)))
                )

    base = {"carry": 0, "stacked": len(inputs.carry), "invariant": len(inputs.carry) + len(inputs.stacked)}
    node_base = base["invariant"] + len(inputs.invariant)
    local_ref = result_refs(block, node_base)

    def body_ref(place: tuple[str, int]) -> Ref:
        kind, number = place
        return local_ref[number] if kind == "local" else Ref(base[kind] + number)

    slot = 0
    body_nodes = []
    common = _common_regions(rows)
    for position, node in enumerate(block):
        read_refs = iter(body_ref(p) for p in placed[slot : slot + int(_slots(tape, loop.start + position))])
        args = tuple(
            body_ref(scalars[position, k]) if (position, k) in scalars else refill(v, read_refs)
            for k, v in enumerate(node.args)
        )
        kwargs = tuple(
            (k, body_ref(scalars[position, k]) if (position, k) in scalars else refill(v, read_refs))
            for k, v in node.kwargs
        )
        slot += int(_slots(tape, loop.start + position))
        scope = _merged_scope(node.scope, rows[1][position].scope)
        body_nodes.append(
            replace(
                node,
                id=node_base + position,
                args=args,
                kwargs=kwargs,
                scope=scope,
                marks=_inner(node, common),
            )
        )

    body_inputs = (
        *(Input(k, "carry", "", aval_of[c]) for k, (c, _) in enumerate(inputs.carry)),
        *_stacked_inputs(inputs.stacked, graph, tape, base["stacked"]),
        *(
            Input(base["invariant"] + k, "invariant", "", _aval(graph, tape, v))
            for k, v in enumerate(inputs.invariant)
        ),
    )
    order = {key: k for k, key in enumerate(inputs.carry)}
    next_values = [
        local_ref[column] if len(inits) == 1 else Ref(order[column, inits[1:]])
        for column, inits in inputs.carry
    ]
    body = Graph(
        inputs=body_inputs,
        nodes=tuple(body_nodes),
        outputs=(
            *(Output("carry", "", r) for r in next_values),
            *(Output("y", "", local_ref[c]) for c in loop.ys),
        ),
    )
    body = roll(body, least)

    def outer(number: int) -> Ref:
        ref = ref_of[number]
        return renamed.get(ref, ref)

    roll_id = fresh()
    ys = [Aval((loop.count, *a.shape), a.dtype) for a in (aval_of[c] for c in loop.ys) if a is not None]
    node = Node(
        id=roll_id,
        op=ROLL,
        args=(
            body,
            loop.count,
            tuple(outer(inits[0]) for _, inits in inputs.carry),
            tuple(
                key[1] if isinstance(key[0], str) else tuple(outer(v) for v in key) for key in inputs.stacked
            ),
            tuple(outer(v) for v in inputs.invariant),
        ),
        kwargs=(("draws", loop.draws),),
        out=(*(aval_of[c] for c, _ in inputs.carry), *ys),
        where=block[0].where,
        scope=_shared_scope(body_nodes),
        marks=tuple(("checkpoint", r) for r in common),
    )
    return [node, *_readers(tape, loop, order, roll_id, ref_of, renamed, fresh, aval_of)]


def _readers(
    tape: Tape,
    loop: Wiring,
    order: dict[Any, int],
    roll_id: int,
    ref_of: list[Ref],
    renamed: dict[Ref, Ref],
    fresh: _Fresh,
    aval_of: list[Any],
) -> list[Node]:
    """Selections of single iterations, for the values that later nodes read."""
    latest = {column: k for k, (column, inits) in reversed(list(enumerate(order))) if len(inits) == 1}
    y_index = {column: len(order) + k for k, column in enumerate(loop.ys)}
    first, values = int(tape.value[loop.start]), len(aval_of)
    made = []
    for row in range(loop.count):
        for column in range(values):
            number = first + row * values + column
            if tape.last_use[number] < loop.stop:
                continue
            if row == loop.count - 1 and column in latest:
                renamed[ref_of[number]] = Ref(roll_id, latest[column])
                continue
            select = fresh()
            made.append(
                Node(select, SELECT, (Ref(roll_id, y_index[column]), 0, row), (), aval_of[column], scope="")
            )
            renamed[ref_of[number]] = Ref(select)
    return made


def _stacked_inputs(stacked: dict[Any, int], graph: Graph, tape: Tape, base: int) -> list[Input]:
    made = []
    for k, key in enumerate(stacked):
        if isinstance(key[0], str):
            made.append(Input(base + k, "scalar", "", Aval((), {"float": "float64", "int": "int64"}[key[0]])))
        else:
            made.append(Input(base + k, "stacked", "", _aval(graph, tape, key[0])))
    return made


def _aval(graph: Graph, tape: Tape, number: int) -> Aval:
    if number < len(graph.inputs):
        return graph.inputs[number].aval
    position = int(tape.value.searchsorted(number, side="right")) - 1
    found = results(graph.nodes[position])[number - int(tape.value[position])]
    assert found is not None, "an absent result is never an operand"
    return found


def _slots(tape: Tape, position: int) -> int:
    return tape.slot[position + 1] - tape.slot[position]


def _literal(node: Node, where: int | str) -> Any:
    return node.args[where] if isinstance(where, int) else dict(node.kwargs)[where]


def _common_regions(rows: list[tuple[Node, ...]]) -> tuple[Any, ...]:
    """The checkpoint regions that hold the whole run."""
    chains = {regions_of(n) for row in rows for n in row}
    shortest = min(chains, key=len)
    depth = 0
    while depth < len(shortest) and len({c[depth] for c in chains}) == 1:
        depth += 1
    return shortest[:depth]


def _inner(node: Node, common: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    left = len(common)
    kept = []
    for mark in node.marks:
        if mark[0] == "checkpoint" and left:
            left -= 1
        else:
            kept.append(mark)
    return tuple(kept)


def _merged_scope(one: str, other: str) -> str:
    """``h.0.attn`` and ``h.1.attn`` -> ``h.*.attn``."""
    a, b = one.split("."), other.split(".")
    if len(a) != len(b):
        return one
    return ".".join(x if x == y else "*" for x, y in zip(a, b, strict=True))


def _shared_scope(nodes: list[Node]) -> str:
    shared = nodes[0].scope.split(".")
    for node in nodes[1:]:
        parts = node.scope.split(".")
        keep = 0
        while keep < min(len(parts), len(shared)) and parts[keep] == shared[keep]:
            keep += 1
        shared = shared[:keep]
    return ".".join(shared)
