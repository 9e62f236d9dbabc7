"""What forward makes at its first call and finds from then on: a table in a dictionary, a number's tensor in an object.

    if "scale" not in self.cache:
        self.cache["scale"] = torch.tensor(x.shape[0] ** -0.5)

In eager the first batch decides, and whoever looks into the dictionary, or writes to what is there, has the tensor that
every later step reads. So where it follows from what no step changes (of weights or a batch it would be state), it is
worked out here, with torch and the values of now, put into its place, and the program is captured again: it reads the
tensor there like any other that the loss holds.

How it can fail: what cannot be worked out (an operator that is not ATen's) stays a part of the program, and its place
as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from detente.bridge.arrays import to_torch
from detente.bridge.capture.computed import compute
from detente.bridge.capture.held import Left
from detente.bridge.capture.kept import filled
from detente.bridge.graph import Graph, Ref, computing, node_refs, refs
from detente.bridge.live.places import has, place, put
from detente.bridge.live.sources import ABSENT

MOST = 8  # turns: a forward that makes another place whenever it runs is none of these


class Made(Exception):
    """A capture found such places: it is to begin again with their ``values`` there."""

    def __init__(self, values: list[tuple[Any, Any, Any]]) -> None:
        super().__init__()
        self.values = values


def made_once(
    left: Iterable[Left], graph: Graph, held: Mapping[str, torch.Tensor]
) -> list[tuple[Any, Any, Any]]:
    """(table, key, value) of each that follows from what no step changes and can be worked out. ``graph`` has their
    results; ``held`` are buffers, and tensors that the loss holds, by name. What stands where something stood before
    follows from constants alone: of a tensor it may be the next one of that."""
    ours = [one for one in left if (one.fresh or one.constant) and one.template is not None]
    values = _values(graph, {ref.id for one in ours for result in one.results for ref in refs(result)}, held)
    found = []
    for one in ours:
        parts = [_value(result, values) for result in one.results]
        if one.template is not None and all(part is not None for part in parts):
            whole = filled(one.template[0], lambda leaf, parts=parts: _of(leaf, parts))
            found.append((one.table, one.key, whole))
    return found


def _of(leaf: Any, parts: list[Any]) -> Any:
    tensor = parts[leaf.index]
    return tensor.item() if leaf.number else tensor


def _value(result: Any, values: Mapping[int, Any]) -> torch.Tensor | None:
    if not isinstance(result, Ref):
        return None
    found: Any = values.get(result.id)
    found = found if result.index is None or found is None else found[result.index]
    # a tensor of its own: two places of eager's that show one memory are not told apart here
    return found.clone() if isinstance(found, torch.Tensor) else None


def _values(graph: Graph, wanted: set[int], held: Mapping[str, torch.Tensor]) -> dict[int, Any]:
    """By id: what these read, as far as it is known."""
    nodes = computing(graph, wanted)
    read = wanted | {ref.id for node in nodes for ref in node_refs(node)}
    values: dict[int, Any] = {}
    for item in graph.inputs:
        if item.kind == "constant" and item.id in read:
            values[item.id] = to_torch(graph.constants[item.name])
        elif item.kind == "buffer" and item.id in read and not held[item.name].is_meta:
            values[item.id] = held[item.name].detach()
    compute(nodes, values)
    return values


class Filling:
    """Places that captures have filled, so that none is filled twice, and all can be emptied again."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, Any, Any]] = []

    @property
    def places(self) -> set[tuple[int, Any]]:
        return {place(table, key) for table, key, _ in self._before}

    def fill(self, values: Iterable[tuple[Any, Any, Any]]) -> None:
        for table, key, value in values:
            self._before.append((table, key, table[key] if has(table, key) else ABSENT))
            put(table, key, value)

    def empty(self) -> None:
        for table, key, before in reversed(self._before):
            if before is not ABSENT:
                put(table, key, before)
            elif has(table, key):
                del table[key]
        self._before.clear()
