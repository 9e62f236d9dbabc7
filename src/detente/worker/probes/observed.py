"""What one step did, as the framework's own profiler, dispatcher and counters saw it. The stack is not asked."""

from __future__ import annotations

import sys
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``observed``; each entry is explained where it is made (worker/watch).

    ``launches`` XLA executables, ``regions`` compiled regions of torch; neither: an eager step. ``parameters`` is the
    number of parameters' elements, so that ``updated`` can be held against it. ``loss_read``: among the values that a
    step copied to the host is its loss.
    """
    running = opened.running
    batch = opened.placed[-1]
    handles: list[Any] = []

    def step() -> None:
        handle = running.step(batch)
        running.synchronise(handle)
        handles.append(handle)

    names = running.parameter_names()
    found: dict[str, Any] = {
        "launches": 0,
        "regions": 0,
        "reads": 0,
        "places": 0,
        "parameters": sum(a.size for n, a in opened.weights.items() if n in names),
    }
    if "torch_xla" in sys.modules:
        from detente.worker.watch import in_torch_xla

        found |= in_torch_xla.watch(step)
    elif "jax" in sys.modules:
        from detente.worker.watch import in_jax

        found |= in_jax.watch(step)
    if "torch" in sys.modules and "torch_xla" not in sys.modules:
        found |= _torch(found, step, running, handles)
    return {"observed": found}


def _torch(found: dict[str, Any], step: Any, running: Any, handles: list[Any]) -> dict[str, Any]:
    from detente.worker.watch import in_torch

    seen = in_torch.watch(step)
    seen["reads"] += found["reads"]
    seen["graph_breaks"] = in_torch.breaks()
    seen["frozen"] = in_torch.frozen()
    if found["launches"] == 0:
        # Nothing gives this step's program away, so its operators are read one by one.
        read = in_torch.dispatched(step)
        values = read.pop("values_read")
        loss = running.loss(handles[-1])
        seen |= read | {"loss_read": any(value == loss for value in values)}
    return seen
