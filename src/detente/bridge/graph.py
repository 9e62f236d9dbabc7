"""The neutral graph that capture hands over and lowering reads.

It names no framework: operators are strings (``aten.add.Tensor``), dtypes are strings (``float32``),
so a renamed overload is a row in a table and never an ImportError, and the graph can be hashed,
stored, rolled and compared without torch or jax in the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Aval:
    """Shape and dtype of one value, as ATen gives it. ``dtype`` is torch's name without ``torch.``."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Ref:
    """A use of the value ``id``; ``index`` picks one output of a node that has several."""

    id: int
    index: int | None = None


@dataclass(frozen=True)
class Where:
    """The place in the user's code that a node comes from; every refusal names it."""

    file: str = "?"
    line: int = 0
    code: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """By its parts: who reads a stored program may know that the code stands in other lines by now."""
        return Where, (self.file, self.line, self.code)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f"  `{self.code}`" if self.code else "")


@dataclass(frozen=True)
class Node:
    """One operator call.

    ``args`` and ``kwargs`` hold literals, ``Ref``, nested tuples of these, or a ``Graph`` (the branches of
    ``torch.cond`` and friends). Literals are: None, bool, int, float, complex, str; a dtype is its name
    (``"float32"``), a device ``"cpu"``, a layout ``"strided"``, a memory format ``"contiguous_format"``; lists
    become tuples. ``op`` is ``str(OpOverload)`` (``aten.add.Tensor``), ``higher_order.NAME`` for ``torch.cond`` and
    friends, or one of the bridge's own: ``detente.function`` (an ``autograd.Function`` with its backward),
    ``detente.roll``, ``detente.keep_gradient``, ``detente.derivative``, ``detente.vmap``. ``args`` are as in
    the captured call: defaults that the call left out are left out here too. ``out`` is one ``Aval``, or a tuple of
    them (``None`` for an absent output).
    ``scope`` is the module path of the call (``h.3.attn``; ``scope_name`` of programs/scope.py). ``draw`` is the
    ordinal of a random call in eager order, fixed at capture before any elimination, and ``None`` for an operator that
    draws nothing. ``marks`` carries what is true of the call's surroundings: ``("no_grad",)`` (no gradient flows
    through this call), ``("checkpoint", 2)`` (inside the second ``torch.utils.checkpoint`` region; nested regions
    outermost first).
    """

    id: int
    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    out: Aval | tuple[Aval | None, ...] | None
    where: Where = Where()
    scope: str = ""
    draw: int | None = None
    marks: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class Input:
    """A graph input. ``kind`` is ``parameter``, ``buffer``, ``constant`` or ``batch``; ``name`` is torch's
    ``state_dict`` name, or the path of a batch leaf. ``trainable`` is ``Parameter.requires_grad``."""

    id: int
    kind: str
    name: str
    aval: Aval
    trainable: bool = False


@dataclass(frozen=True)
class Output:
    """A graph output. ``kind`` is ``loss``, ``aux``, ``buffer``, or, at the end, ``kept`` (what forward leaves in
    Python's places); for a buffer ``name`` is the mutated buffer. ``value`` is a ``Ref`` or a literal."""

    kind: str
    name: str
    value: Any


@dataclass(frozen=True)
class Graph:
    """A straight-line program in eager order, functional: every node's inputs stand before it. ``unreached`` names
    trainable inputs that flow into the loss where torch's autograd gives them no gradient (behind a derivative)."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    constants: dict[str, Any] = field(default_factory=dict, compare=False)  # name -> numpy array
    unreached: frozenset[str] = frozenset()


def refs(value: Any) -> Iterator[Ref]:
    """Every ``Ref`` inside nested args, in order."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from refs(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from refs(item)


def node_refs(node: Node) -> Iterator[Ref]:
    """Every ``Ref`` that a node reads, positional arguments first."""
    yield from refs(node.args)
    for _, value in node.kwargs:
        yield from refs(value)


def computing(graph: Graph, ids: Iterable[int]) -> list[Node]:
    """The nodes that the values of these ids are computed by, in order."""
    wanted, found = set(ids), []
    for node in reversed(graph.nodes):
        if node.id in wanted:
            found.append(node)
            wanted.update(ref.id for ref in node_refs(node))
    return found[::-1]


def avals(graph: Graph) -> dict[Ref, Aval]:
    """Every value's ``Aval``. Ids are unique within one graph; a sub-graph's are its own."""
    found: dict[Ref, Aval] = {Ref(item.id): item.aval for item in graph.inputs}
    for node in graph.nodes:
        if isinstance(node.out, tuple):
            found.update({Ref(node.id, k): aval for k, aval in enumerate(node.out) if aval is not None})
        elif node.out is not None:
            found[Ref(node.id)] = node.out
    return found


def graphs_in(value: Any) -> Iterator[Graph]:
    """The sub-graphs inside nested arguments."""
    if isinstance(value, Graph):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from graphs_in(item)


def without_dead(graph: Graph) -> Graph:
    """The graph without nodes and constants that no output depends on. Other inputs stay: they are the
    signature. Draw ordinals were fixed at capture, so nothing is renumbered."""
    live = {ref.id for output in graph.outputs for ref in refs(output.value)}
    kept = []
    for node in reversed(graph.nodes):
        if node.id in live or node.out is None:
            kept.append(node)
            live.update(ref.id for ref in node_refs(node))
    inputs = tuple(i for i in graph.inputs if i.id in live or i.kind != "constant")
    constants = {i.name: graph.constants[i.name] for i in inputs if i.name in graph.constants}
    return replace(graph, inputs=inputs, nodes=tuple(reversed(kept)), constants=constants)
