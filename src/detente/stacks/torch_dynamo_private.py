"""The private parts of torch.compile that evidence needs, in one place (tested with torch 2.13; written for 2.9 on).

``self_test`` says which of them a new torch has moved; tests/conformance/stacks runs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from detente.stacks.protocol import CompileCount

_FRAME = "_compile.compile_inner"
_BACKWARD = "compile_fx.<locals>.bw_compiler"


class DynamoCounters:
    """Compilations, their seconds, and graph breaks, as torch._dynamo counts them."""

    def __init__(self) -> None:
        from torch._dynamo import utils

        self._utils = utils

    def count(self) -> CompileCount:
        """Compilations so far: one per traced frame, recompilations included, and one per backward graph, which is
        compiled when autograd first runs it. ``counters["frames"]`` is no measure: it stays empty under
        ``fullgraph=True`` (torch 2.13)."""
        times = self._utils.compilation_time_metrics
        found = [times.get(name, ()) for name in (_FRAME, _BACKWARD)]
        return CompileCount(sum(len(t) for t in found), float(sum(sum(t) for t in found)))


def plain_step(optimizer: Any) -> Callable[[], Any]:
    """``optimizer.step`` without the wrappers that torch puts around it: its own ``graph_break()`` for
    differentiable optimizers, and the profiler's hook. The update itself is torch's, unchanged; what is left
    captures as one graph."""
    import torch

    step = type(optimizer).step
    while hasattr(step, "__wrapped__"):
        step = step.__wrapped__

    def update() -> None:
        with torch.no_grad():
            step(optimizer)

    return update


def with_hooks(optimizer: Any, update: Callable[[], Any]) -> Callable[[], None]:
    """``update`` between the hooks that stand around ``optimizer.step`` now (a user's clipping), to be captured with
    it."""
    own = importlib.import_module("torch.optim.optimizer")
    before = (*own._global_optimizer_pre_hooks.values(), *optimizer._optimizer_step_pre_hooks.values())
    after = (*optimizer._optimizer_step_post_hooks.values(), *own._global_optimizer_post_hooks.values())
    if not before and not after:
        return update

    def step() -> None:
        for hook in before:
            hook(optimizer, (), {})
        update()
        for hook in after:
            hook(optimizer, (), {})

    return step


def self_test() -> list[str]:
    """What is missing in this torch, by name; empty when everything is where it is expected."""
    import torch
    from torch._dynamo import utils

    missing = []
    if not hasattr(utils, "counters"):
        missing.append("torch._dynamo.utils.counters")
    if not hasattr(utils, "compilation_time_metrics"):
        missing.append("torch._dynamo.utils.compilation_time_metrics")
    if not hasattr(torch.optim.AdamW.step, "__wrapped__"):
        missing.append("torch.optim.AdamW.step.__wrapped__")
    sgd = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    for when in ("pre", "post"):
        if not hasattr(sgd, f"_optimizer_step_{when}_hooks"):
            missing.append(f"torch.optim.Optimizer._optimizer_step_{when}_hooks")
        if not hasattr(importlib.import_module("torch.optim.optimizer"), f"_global_optimizer_{when}_hooks"):
            missing.append(f"torch.optim.optimizer._global_optimizer_{when}_hooks")
    return missing
