"""What a program computes from constants alone, worked out with torch: knowledge for other passes.

Nothing is replaced here. A causal mask of 1,024 x 1,024 that is folded into the program is a megabyte of
constant; XLA makes it from two iotas for nothing. What matters is to *know* that it is causal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from detente.bridge.graph import Aval, Graph, Node, Ref, node_refs

LIMIT = 1 << 26  # elements; a bigger value is not worked out


def known(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> dict[int, Any]:
    """Values by node or input id (a tuple for a node of several outputs), of everything that depends on
    nothing but literals, the graph's constants and ``tensors`` (buffers that no step changes, by name)."""
    values: dict[int, Any] = {}
    written = {output.name for output in graph.outputs if output.kind == "buffer"}
    for item in graph.inputs:
        if item.kind == "constant":
            values[item.id] = _constant(graph.constants[item.name])
        elif item.kind == "buffer" and item.name not in written and item.name in tensors:
            values[item.id] = tensors[item.name].detach()
    for node in graph.nodes:
        if node.draw is None and _small(node.out) and all(ref.id in values for ref in node_refs(node)):
            result = _compute(node, values)
            if result is not None:
                values[node.id] = result
    return values


def _constant(array: Any) -> torch.Tensor:
    from detente.bridge.arrays import to_torch

    return to_torch(array)


def _small(out: Aval | tuple[Aval | None, ...] | None) -> bool:
    outs = out if isinstance(out, tuple) else (out,)
    total = 0
    for aval in outs:
        if aval is None:
            return False
        size = 1
        for n in aval.shape:
            size *= n
        total += size
    return total <= LIMIT


def _compute(node: Node, values: Mapping[int, Any]) -> Any:
    """The node's value by torch itself, or None for an operator that is not plain ATen."""
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
        return None  # knowledge is optional: the program itself computes this node all the same


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
