"""What a traced optimizer is: small records, no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from detente.bridge.graph import Aval, Graph, node_refs, refs
from detente.bridge.optim.halves import Split, split


@dataclass(frozen=True)
class Leaf:
    """One entry of ``optimizer.state[p]``. ``kind`` is ``tensor``, or ``int`` / ``float`` for a Python number
    (kept as a 0-d float64 value inside a step, and given back to torch as the Python number), or ``none`` for a None
    that stays one."""

    key: str
    aval: Aval
    kind: str = "tensor"


@dataclass(frozen=True)
class Path:
    """One way through the Python ``if``s of ``step()`` that depend on a run-time value.

    ``graph`` takes ``param``, ``grad``, ``state.<key>`` and ``hyper.<name>`` and gives ``param``, the leaves
    in order, and the tested conditions in order; ``outcomes`` are the answers that lead down this path.
    """

    outcomes: tuple[bool, ...]
    graph: Graph


@dataclass(frozen=True)
class Guard:
    """A fact about hyper-parameters that the trace relied on (``weight_decay != 0``)."""

    now: Callable[[Any], Any]
    expected: Any
    place: str

    def holds(self, values: dict[str, float]) -> bool:
        return self.now(values) == self.expected


@dataclass(frozen=True)
class Due:
    """A number that the step writes into its group, as a function of the group's numbers before it."""

    key: str
    now: Callable[[Any], Any]
    whole: bool  # an int in the group, and not a float

    def value(self, values: dict[str, float]) -> int | float:
        found = self.now(values)
        return int(found) if self.whole else float(found)


@dataclass(frozen=True)
class Trace:
    """One call of ``step()`` on one parameter: every path through it, and the state that it leaves."""

    leaves: tuple[Leaf, ...]
    paths: tuple[Path, ...]
    guards: tuple[Guard, ...] = field(default=(), compare=False)
    writes: tuple[Due, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Program:
    """The update of every parameter that has this shape, dtype, group structure and state layout.

    ``step`` is the update from a state that exists. ``first`` is the update of a parameter that has none yet,
    kept only where it differs from "make ``births``, then ``step``" (SGD's momentum begins as the gradient
    itself, without dampening). ``births`` maps a leaf's key to a graph (``param`` and ``hyper.*`` in, the
    value out) that makes it before the first step; None where torch had made the state already.
    """

    param: Aval
    hyper: tuple[str, ...]
    step: Trace
    first: Trace | None
    births: dict[str, Graph] | None

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self.step.leaves

    @cached_property
    def copies_param(self) -> bool:
        """Whether a leaf begins as something made of the parameter's value (an anchor, slow weights)."""
        return any(item.name == "param" for graph in (self.births or {}).values() for item in graph.inputs)

    @cached_property
    def halves(self) -> Split | None:
        """The step in two, where it has one way through and no first one of its own."""
        if self.first is not None or len(self.step.paths) != 1:
            return None
        return split(self.step.paths[0].graph)

    @property
    def guards(self) -> tuple[Guard, ...]:
        return self.step.guards + (self.first.guards if self.first else ())


def live(graph: Graph) -> Graph:
    """The graph without inputs and nodes that no output needs (torch's sanity checks leave such tests behind)."""
    wanted = {ref.id for output in graph.outputs for ref in refs(output.value)}
    kept = []
    for node in reversed(graph.nodes):
        if node.id in wanted:
            kept.append(node)
            wanted.update(ref.id for ref in node_refs(node))
    inputs = tuple(item for item in graph.inputs if item.id in wanted)
    return Graph(inputs, tuple(reversed(kept)), graph.outputs, graph.constants)
