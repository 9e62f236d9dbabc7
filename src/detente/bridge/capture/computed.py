"""A node's value by torch itself, outside of any program: for what is known before a step runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from detente.bridge.graph import Node, Ref, node_refs
from detente.bridge.private import outside_of_modes


def computed(node: Node, values: Mapping[int, Any]) -> Any:
    """From ``values`` by id; None for an operator that is not plain ATen."""
    space, _, rest = node.op.partition(".")
    name, _, overload = rest.rpartition(".")
    if space != "aten" or not hasattr(torch.ops.aten, name):
        return None
    operator = getattr(getattr(torch.ops.aten, name), overload, None)
    if operator is None:
        return None
    types = {a.name: str(a.type) for a in operator._schema.arguments}
    order = [a.name for a in operator._schema.arguments]
    args = [_literal(a, values, types[order[i]]) for i, a in enumerate(node.args)]
    kwargs = {k: _literal(v, values, types.get(k, "")) for k, v in node.kwargs}
    try:
        with torch.no_grad():
            return operator(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # whoever asks goes on without: the program itself computes this node all the same


def compute(nodes: Iterable[Node], values: dict[int, Any]) -> None:
    """Puts into ``values`` what can be worked out of these nodes, in order; a draw is none of it."""
    with outside_of_modes():
        for node in nodes:
            if node.draw is None and all(ref.id in values for ref in node_refs(node)):
                result = computed(node, values)
                if result is not None:
                    values[node.id] = result


def _literal(value: Any, values: Mapping[int, Any], kind: str) -> Any:
    if isinstance(value, Ref):
        found = values[value.id]
        return found if value.index is None else found[value.index]
    if isinstance(value, tuple):
        return [_literal(item, values, kind) for item in value]
    if isinstance(value, str):
        if "Device" in kind:
            return torch.device("cpu")
        if any(word in kind for word in ("ScalarType", "int", "Layout", "MemoryFormat")):
            return getattr(torch, value, value)
    return value
