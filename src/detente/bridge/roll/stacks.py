"""Stacked state: the parameters and buffers of rolled layers live as one array per role, layer by layer along the
first axis, between steps as well as inside them. Stacking them in every step would copy all weights twice.

``stacked(graph)`` replaces such inputs (and the buffers' outputs) by one each and says, in ``Stacks``, which names
of torch's ``state_dict`` each holds. The step keeps its state under the new names; ``split`` gives torch's back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref, node_refs, refs
from detente.bridge.roll.fold import ROLL, SELECT

T = TypeVar("T")


@dataclass(frozen=True)
class Stack:
    """``name`` (``h.0-11.attn.c_attn.weight``) is an array of shape ``(len(members), *shape of each)``;
    ``members`` are torch's names, in the order of the first axis."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Stacks:
    """All stacked leaves of one program."""

    rows: tuple[Stack, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Stack]:
        return {s.name: s for s in self.rows}

    @cached_property
    def place(self) -> dict[str, tuple[str, int]]:
        """torch's name -> (stacked name, index along the first axis)."""
        return {m: (s.name, k) for s in self.rows for k, m in enumerate(s.members)}

    def join(self, values: Mapping[str, T], stack: Callable[[list[T]], T]) -> dict[str, T]:
        """State by torch's names -> state by the program's names; what belongs to no stack passes through.

        ``values`` may hold only some of the stacks (the trainable part, one optimizer moment), but each of them
        wholly: a stack of which some members are missing raises KeyError with their names.

        >>> Stacks((Stack("h.0-1.w", ("h.0.w", "h.1.w")),)).join({"h.1.w": 2, "h.0.w": 1, "b": 0}, list)
        {'h.0-1.w': [1, 2], 'b': 0}
        """
        return self.gather(dict(values), stack)

    def gather(self, values: dict[str, T], stack: Callable[[list[T]], T]) -> dict[str, T]:
        """As ``join``, and takes every leaf out of ``values`` on the way: where nothing else holds them, the members
        of one stack at a time exist twice."""
        for name in values:
            whole = self.by_name[self.place[name][0]] if name in self.place else None
            absent = [m for m in whole.members if m not in values] if whole else []
            if whole and absent:
                raise KeyError(f"{whole.name} needs all of its layers; missing: {', '.join(absent)}")
        joined: dict[str, T] = {}
        for name in list(values):
            if name not in self.place:
                joined[name] = values.pop(name)
            elif name in values:
                whole = self.by_name[self.place[name][0]]
                joined[whole.name] = stack([values.pop(m) for m in whole.members])
        return joined

    def split(self, values: Mapping[str, T], take: Callable[[T, int], T] = lambda a, k: a[k]) -> dict[str, T]:  # type: ignore[index]
        """State by the program's names -> state by torch's names, the inverse of ``join``.

        >>> Stacks((Stack("h.0-1.w", ("h.0.w", "h.1.w")),)).split({"h.0-1.w": [1, 2], "b": 0})
        {'h.0.w': 1, 'h.1.w': 2, 'b': 0}
        """
        found: dict[str, T] = {}
        for name, value in values.items():
            if name in self.by_name:
                found.update({m: take(value, k) for k, m in enumerate(self.by_name[name].members)})
            else:
                found[name] = value
        return found


def stacked(graph: Graph, alike: Callable[[str], Hashable] = lambda name: None) -> tuple[Graph, Stacks]:
    """``graph`` (from ``fold.roll``) with one input per stack, and the record of the stacks.

    ``alike(name)`` must be equal for parameters that one optimizer call may update together (same parameter
    group). A parameter that is also read elsewhere, or a buffer of which some layers alone are written, stays as
    it is: the loop then stacks it in every step.
    """
    inputs = {i.id: i for i in graph.inputs}
    uses = Counter(r.id for n in graph.nodes for r in node_refs(n))
    uses.update(r.id for o in graph.outputs for r in refs(o.value))
    written = _written(graph)
    written_names = {o.name for o in graph.outputs if o.kind == "buffer"}
    fresh = 1 + max(v.id for v in (*graph.inputs, *graph.nodes))

    rows: list[Stack] = []
    new_inputs: dict[int, Input] = {}  # id of the first member -> the stacked input
    gone: set[int] = set()  # ids of members and of selections that nobody reads any more
    outputs: dict[str, Output] = {}  # first member of a stacked buffer -> its output
    nodes: list[Node] = []
    for node in graph.nodes:
        entries = []
        for entry in node.args[3] if node.op == ROLL else ():
            members = _members(entry, inputs, uses, alike)
            names = tuple(m.name for m in members)
            result = written.get(names)
            if not members or (result is None and written_names.intersection(names)):
                entries.append(entry)
                continue
            first = members[0]
            name = merged_name(names)
            rows.append(Stack(name, names))
            aval = Aval((len(members), *first.aval.shape), first.aval.dtype)
            new_inputs[first.id] = Input(fresh, first.kind, name, aval, first.trainable)
            gone.update(m.id for m in members)
            if result is not None:
                outputs[names[0]] = Output("buffer", name, result)
            entries.append(Ref(fresh))
            fresh += 1
        rolled = node.op == ROLL
        nodes.append(replace(node, args=(*node.args[:3], tuple(entries), *node.args[4:])) if rolled else node)

    stacks = Stacks(tuple(rows))
    kept_outputs = []
    for output in graph.outputs:
        if output.kind == "buffer" and output.name in stacks.place:
            if output.name in outputs:
                kept_outputs.append(outputs[output.name])
        else:
            kept_outputs.append(output)
    kept_inputs = [new_inputs.get(i.id, i) for i in graph.inputs if i.id in new_inputs or i.id not in gone]
    slim = _without_dead_selections(tuple(nodes), tuple(kept_outputs))
    return replace(graph, inputs=tuple(kept_inputs), nodes=slim, outputs=tuple(kept_outputs)), stacks


def merged_name(names: Sequence[str]) -> str:
    """One name for the members of a stack, with the first and the last where they differ.

    >>> merged_name(["h.0.ln.weight", "h.1.ln.weight", "h.2.ln.weight"])
    'h.0-2.ln.weight'
    """
    first, last = names[0].split("."), names[-1].split(".")
    if len(first) != len(last):
        return f"{names[0]}-{names[-1]}"
    return ".".join(a if a == b else f"{a}-{b}" for a, b in zip(first, last, strict=True))


def _members(
    entry: Any, inputs: Mapping[int, Input], uses: Counter[int], alike: Callable[[str], Hashable]
) -> tuple[Input, ...]:
    """The inputs of a stacked entry that may live as one leaf, else nothing."""
    if not isinstance(entry, tuple) or not all(isinstance(r, Ref) and r.id in inputs for r in entry):
        return ()
    members = tuple(inputs[r.id] for r in entry)
    kinds = {(m.kind, m.trainable, m.aval, alike(m.name)) for m in members}
    alone = all(uses[m.id] == 1 for m in members)
    return members if len(kinds) == 1 and alone and members[0].kind in ("parameter", "buffer") else ()


def _written(graph: Graph) -> dict[tuple[str, ...], Ref]:
    """Buffers that are written by all iterations of a loop: their names in order -> the loop's stacked result."""
    made = {n.id: n for n in graph.nodes}
    rows: dict[Ref, dict[int, str]] = {}
    for output in graph.outputs:
        node = made.get(output.value.id) if isinstance(output.value, Ref) else None
        if output.kind != "buffer" or node is None or node.op != SELECT or not isinstance(node.args[0], Ref):
            continue
        source, axis, k = node.args
        if source.id in made and made[source.id].op == ROLL and axis == 0:
            rows.setdefault(source, {})[k] = output.name
    found = {}
    for source, by_row in rows.items():
        if sorted(by_row) == list(range(made[source.id].args[1])):
            found[tuple(by_row[k] for k in sorted(by_row))] = source
    return found


def _without_dead_selections(nodes: tuple[Node, ...], outputs: tuple[Output, ...]) -> tuple[Node, ...]:
    used = {r.id for o in outputs for r in refs(o.value)} | {r.id for n in nodes for r in node_refs(n)}
    return tuple(n for n in nodes if n.op != SELECT or n.id in used)
