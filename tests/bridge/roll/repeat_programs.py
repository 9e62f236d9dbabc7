"""Random programs made of nested repeats, and a numpy interpreter that runs them rolled or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref

SHAPE = (3,)
AVAL = Aval(SHAPE, "float64")


@dataclass(frozen=True)
class Call:
    """One operator of a block. ``back`` says how many values ago each operand was made."""

    op: str
    back: tuple[int, ...]
    scalar: tuple[float, float] = (1.0, 0.0)  # value and step per call
    source: str = ""  # a parameter operand: "own" (a new one per call), "shared", or none


@dataclass(frozen=True)
class Repeated:
    count: int
    items: tuple[Any, ...]


calls = st.one_of(
    st.builds(Call, st.just("aten.sin.default"), st.tuples(st.integers(0, 5))),
    st.builds(Call, st.just("aten.add.Tensor"), st.tuples(st.integers(0, 9), st.integers(0, 9))),
    st.builds(
        Call,
        st.just("aten.mul.Scalar"),
        st.tuples(st.integers(0, 3)),
        st.tuples(st.sampled_from([0.5, 0.9]), st.sampled_from([0.0, 0.01])),
    ),
    st.builds(Call, st.just("test.random"), st.tuples(st.integers(0, 3))),
    st.builds(Call, st.just("test.both"), st.tuples(st.integers(0, 4), st.integers(0, 4))),
    st.builds(
        Call,
        st.just("aten.mul.Tensor"),
        st.tuples(st.integers(0, 3)),
        source=st.sampled_from(["own", "shared"]),
    ),
)
items = st.recursive(
    calls,
    lambda inner: st.builds(Repeated, st.integers(2, 4), st.lists(inner, min_size=1, max_size=5).map(tuple)),
    max_leaves=12,
)


@st.composite
def graphs(draw: Any) -> Graph:
    """A program of nested repeats; some values in the middle are outputs too."""
    program = draw(st.lists(items, min_size=1, max_size=5))
    builder = _Builder()
    for item in program:
        builder.emit(item)
        if len(builder.nodes) > 250:
            break
    wanted = draw(st.lists(st.integers(0, 10**6), max_size=4))
    return builder.graph(wanted)


@dataclass
class _Builder:
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    recent: list[Ref] = field(default_factory=list)
    draws: int = 0
    called: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in "xyz":
            self.recent.append(self.input("batch", name))
        self.shared = self.input("parameter", "shared")

    def input(self, kind: str, name: str) -> Ref:
        self.inputs.append(Input(10_000 + len(self.inputs), kind, name, AVAL, kind == "parameter"))
        return Ref(self.inputs[-1].id)

    def emit(self, item: Any) -> None:
        if isinstance(item, Repeated):
            for _ in range(item.count):
                for inner in item.items:
                    self.emit(inner)
            return
        operands = tuple(self.recent[-1 - b % len(self.recent)] for b in item.back)
        times = self.called[id(item)] = self.called.get(id(item), -1) + 1
        number, draw, out = len(self.nodes), None, AVAL
        args: tuple[Any, ...] = operands
        if item.op == "aten.mul.Scalar":
            args = (*operands, item.scalar[0] + times * item.scalar[1])
        elif item.op == "aten.mul.Tensor":
            own = item.source == "own"
            args = (*operands, self.input("parameter", f"p{len(self.inputs)}") if own else self.shared)
        elif item.op == "test.random":
            draw, self.draws = self.draws, self.draws + 1
        elif item.op == "test.both":
            args, out = (operands,), (AVAL, AVAL)
        self.nodes.append(Node(number, item.op, args, (), out, scope=f"layer.{times}", draw=draw))
        self.recent += [Ref(number, 0), Ref(number, 1)] if isinstance(out, tuple) else [Ref(number)]

    def graph(self, wanted: list[int]) -> Graph:
        refs = [self.recent[-1], *(self.recent[w % len(self.recent)] for w in wanted)]
        outputs = tuple(Output("loss" if k == 0 else "aux", str(k), r) for k, r in enumerate(refs))
        return Graph(tuple(self.inputs), tuple(self.nodes), outputs)


def values_for(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(0.5, 1.5, i.aval.shape) for i in graph.inputs]


def interpret(graph: Graph, args: list[Any], offset: int = 0) -> list[Any]:
    """The outputs of a graph in numpy; each operation is the same whether it stands in a loop or not, so equal
    programs give bitwise equal numbers."""
    values: dict[int, Any] = {i.id: a for i, a in zip(graph.inputs, args, strict=True)}

    def look(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.id] if value.index is None else values[value.id][value.index]
        return tuple(look(v) for v in value) if isinstance(value, tuple) else value

    for node in graph.nodes:
        a = look(node.args)
        match node.op:
            case "aten.sin.default":
                out = np.sin(a[0])
            case "aten.add.Tensor":
                out = 0.5 * (a[0] + a[1])
            case "aten.mul.Scalar" | "aten.mul.Tensor":
                out = a[0] * a[1]
            case "aten.select.int":
                assert a[1] == 0
                out = a[0][a[2]]
            case "test.random":
                assert node.draw is not None
                out = a[0] + np.cos(node.draw + offset)
            case "test.both":
                out = (np.cos(a[0][0]) - a[0][1], a[0][0] * 0.5)
            case "detente.roll":
                out = _loop(node, a, offset)
            case _:
                raise KeyError(node.op)
        values[node.id] = out
    return [look(o.value) for o in graph.outputs]


def _loop(node: Node, args: tuple[Any, ...], offset: int) -> tuple[Any, ...]:
    body, count, carries, stacked, invariants = args
    ys: list[list[Any]] = [[] for o in body.outputs if o.kind == "y"]
    for k in range(count):
        rows = [s[k] for s in stacked]
        out = interpret(body, [*carries, *rows, *invariants], offset + k * dict(node.kwargs)["draws"])
        carries = out[: len(carries)]
        for row, value in zip(ys, out[len(carries) :], strict=True):
            row.append(value)
    return (*carries, *(np.stack(r) for r in ys))
