"""An update is traced one parameter at a time, so a step in which parameters see each other must be refused.

torch's own optimizers never do that. Others do (a global gradient norm inside the step, a shared step size),
and tracing them alone would be silently wrong: for those, two parameters are traced together and the first
one's new value must not depend on the second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from detente.bridge.graph import Aval, Graph, Output, node_refs, refs
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.optim.births import same_graph
from detente.bridge.optim.program import Leaf, Path, Trace, live
from detente.bridge.optim.run import select
from detente.bridge.optim.tracer import trace_step
from detente.bridge.refusal import refuse


def check_uncoupled(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    numbers: Mapping[str, float],
    param: Aval,
    leaves: tuple[Leaf, ...] | None,
    alone: Trace,
) -> None:
    """Raises Refused where the new value or state of one parameter depends on another parameter. ``alone`` is the trace
    of one."""
    if type(optimizer).__module__.startswith("torch.optim"):
        return
    trace = trace_step(optimizer, group, numbers, (param, param), (leaves, leaves))
    _check_branches(optimizer, trace)
    one, two = ([due.value(dict(numbers)) for due in found.writes] for found in (alone, trace))
    if one != two:
        raise refuse(
            "optimizer",
            f"{type(optimizer).__name__}.step() writes {', '.join(due.key for due in trace.writes)} into param_groups "
            "once per parameter",
        )
    for path in trace.paths:
        met = reached(path.graph) & {"param1", "grad1"}
        if met:
            raise refuse(
                "optimizer",
                f"{type(optimizer).__name__}.step() lets one parameter's update depend on another's "
                f"{'gradient' if 'grad1' in met else 'value'}",
                hint="use clip_norm= of detente.compile for clipping; an optimizer that couples parameters cannot "
                "be traced one parameter at a time",
            )
    second = trace_step(optimizer, group, numbers, (param, param), (leaves, leaves), 1)
    _check_alike(optimizer, alone, second, numbers)


def _check_alike(
    optimizer: torch.optim.Optimizer, alone: Trace, second: Trace, numbers: Mapping[str, float]
) -> None:
    """One program is of all parameters of a shape, so where in its group one stands must not decide
    (``for i, p in enumerate(...)``, ``p is params[0]``). Raises Refused. How it can fail: a third one that is special,
    and a step that branches on values; the certificate finds those."""
    if len(alone.paths) != 1 or len(second.paths) != 1:
        return
    graph = second.paths[0].graph
    # a count that the first one's state keeps for all is the second one's, too
    own = tuple(
        replace(item, name=re.sub(r"^(param|grad|state)1\b", r"\1", item.name)) for item in graph.inputs
    )
    one, two = _without_tests(alone.paths[0].graph), _without_tests(replace(graph, inputs=own))
    if reached(graph) & {"param", "grad"} or not (same_graph(one, two) or _same_values(one, two, numbers)):
        raise refuse(
            "optimizer",
            f"{type(optimizer).__name__}.step() updates a parameter by its place among the others, or by what was "
            "done to one before it",
            hint="give what is special about a parameter a group of its own",
        )


def _same_values(one: Graph, two: Graph, numbers: Mapping[str, float]) -> bool:
    """Whether two graphs give the same at a point: on lists of tensors the second takes another element of one list."""
    if {item.name for item in one.inputs} != {item.name for item in two.inputs}:
        return False
    random = np.random.default_rng(0)
    with torch_numerics():
        values = {
            item.name: jnp.asarray(
                numbers[item.name.removeprefix("hyper.")]
                if item.kind == "constant"
                else random.uniform(0.5, 1.5, item.aval.shape),
                item.aval.dtype,
            )
            for item in one.inputs
        }
        found = [select((Path((), graph),), values, len(graph.outputs)) for graph in (one, two)]
        alike = [np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(*found, strict=True)]
    return all(alike)


def _check_branches(optimizer: torch.optim.Optimizer, trace: Trace) -> None:
    """A branch that the second parameter decides must leave the first as it is. Raises Refused."""
    plain = {path.outcomes: _without_tests(path.graph) for path in trace.paths}
    for path in trace.paths:
        for index, output in enumerate(o for o in path.graph.outputs if o.kind == "aux"):
            of_second = reached(path.graph, (output,)) & {"param1", "grad1"}
            turned = (*path.outcomes[:index], not path.outcomes[index])
            others = [plain[k] for k in plain if k[: index + 1] == turned]
            if of_second and not any(same_graph(plain[path.outcomes], other) for other in others):
                raise refuse(
                    "optimizer",
                    f"{type(optimizer).__name__}.step() lets one parameter's update depend on a test of another's",
                )


def _without_tests(graph: Graph) -> Graph:
    return live(Graph(graph.inputs, graph.nodes, tuple(o for o in graph.outputs if o.kind != "aux")))


def reached(graph: Graph, outputs: Sequence[Output] | None = None) -> set[str]:
    """Names of the inputs that the outputs depend on, by default all but the tests."""
    outputs = [o for o in graph.outputs if o.kind != "aux"] if outputs is None else outputs
    made = {node.id: node for node in graph.nodes}
    names = {item.id: item.name for item in graph.inputs}
    todo = [ref.id for output in outputs for ref in refs(output.value)]
    seen: set[int] = set()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        if current in made:
            todo += [ref.id for ref in node_refs(made[current])]
    return {names[i] for i in seen if i in names}
