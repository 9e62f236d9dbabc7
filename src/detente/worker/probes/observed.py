"""What one step did, as the framework's own profiler, dispatcher and counters saw it. The stack is not asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import cycle
from typing import Any

from detente.records.sample import Sample
from detente.worker.opened import Opened

# Steps of a queue that is watched, at most: a profiler's record of them is read one by one.
_QUEUED = 512


def probe(opened: Opened, samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Key ``observed``; each entry is explained where it is made (worker/watch).

    ``launches`` XLA executables, ``regions`` compiled regions of torch; neither: an eager step. ``parameters`` is the
    number of parameters' elements, so that ``updated`` can be held against it. ``loss_read``: among the values that a
    step copied to the host is its loss. ``queue``: a queue of ``steps``, as long as a sample's, and what was started
    for all of them: ``launches``, ``regions``, or ``operators`` of eager ones.
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
    queue = _queue(found, opened, samples)
    return {"observed": found | ({"queue": queue} if queue else {})}


def _queue(found: dict[str, Any], opened: Opened, samples: tuple[Sample, ...]) -> dict[str, int]:
    """What is seen of one step may be another program's than that of a queue, which alone is timed. Nothing where a
    sample is one step, which is waited for by itself."""
    running, steps = opened.running, min(max((s.steps for s in samples), default=1), _QUEUED)

    def run() -> None:
        handles = [running.step(batch) for batch, _ in zip(cycle(opened.placed), range(steps), strict=False)]
        running.synchronise(*handles)

    if steps < 2:
        return {}
    counted: Callable[[Callable[[], None]], dict[str, Any]] | None = None
    if "torch_xla" in sys.modules:
        from detente.worker.watch.in_torch_xla import watch as counted
    elif found["launches"]:
        from detente.worker.watch.in_jax import watch as counted
    elif found["regions"]:
        from detente.worker.watch.in_torch import regions as counted
    elif "torch" in sys.modules:
        from detente.worker.watch.in_torch import operators as counted
    seen = counted(run) if counted is not None else {}
    told = {name: int(seen[name]) for name in ("launches", "regions", "operators") if name in seen}
    return {"steps": steps, **told} if told else {}


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
