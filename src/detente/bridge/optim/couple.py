"""An update is traced one parameter at a time, so a step in which parameters see each other must be refused.

torch's own optimizers never do that. Others do (a global gradient norm inside the step, a shared step size),
and tracing them alone would be silently wrong: for those, two parameters are traced together and the first
one's new value must not depend on the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from detente.bridge.graph import Aval, Graph, node_refs, refs
from detente.bridge.optim.program import Leaf
from detente.bridge.optim.tracer import trace_step
from detente.bridge.refusal import refuse


def check_uncoupled(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    numbers: Mapping[str, float],
    param: Aval,
    leaves: tuple[Leaf, ...] | None,
) -> None:
    """Raises Refused where the new value or state of one parameter depends on another parameter."""
    if type(optimizer).__module__.startswith("torch.optim"):
        return
    trace = trace_step(optimizer, group, numbers, (param, param), (leaves, leaves))
    for path in trace.paths:
        met = _reached(path.graph) & {"param1", "grad1"}
        if met:
            raise refuse(
                "optimizer",
                f"{type(optimizer).__name__}.step() lets one parameter's update depend on another's "
                f"{'gradient' if 'grad1' in met else 'value'}",
                hint="use clip_norm= of detente.compile for clipping; an optimizer that couples parameters cannot "
                "be traced one parameter at a time",
            )


def _reached(graph: Graph) -> set[str]:
    """Names of the inputs that the outputs depend on."""
    made = {node.id: node for node in graph.nodes}
    names = {item.id: item.name for item in graph.inputs}
    todo = [ref.id for output in graph.outputs for ref in refs(output.value)]
    seen: set[int] = set()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        if current in made:
            todo += [ref.id for ref in node_refs(made[current])]
    return {names[i] for i in seen if i in names}
