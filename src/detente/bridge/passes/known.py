"""What a program computes from constants alone, worked out with torch: knowledge for other passes.

Nothing is replaced here. A causal mask of 1,024 x 1,024 that is folded into the program is a megabyte of
constant; XLA makes it from two iotas for nothing. What matters is to *know* that it is causal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from detente.bridge.capture.computed import computed
from detente.bridge.graph import Aval, Graph, node_refs

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
            result = computed(node, values)
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
