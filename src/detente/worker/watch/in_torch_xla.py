"""One step as torch_xla's own counters saw it (names as of torch_xla 2.9.0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def watch(run: Callable[[], Any]) -> dict[str, Any]:
    """What one call of ``run`` did: ``launches`` (graphs that were dispatched), ``reads`` (values that were read to the
    host while tracing), and ``aliased``: buffers that the last compiled graph took over from its arguments."""
    from torch_xla.debug import metrics

    def counted(*names: str) -> int:
        return sum(int(metrics.counter_value(name) or 0) for name in names)

    launches, reads = ("CachedCompile", "UncachedCompile"), ("aten::_local_scalar_dense",)
    before = counted(*launches), counted(*reads)
    run()
    data = metrics.metric_data("InputOutputAliasCount")
    aliased = [int(value) for _, value in data[2] if value > 0] if data is not None else []
    return {
        "launches": counted(*launches) - before[0],
        "reads": counted(*reads) - before[1],
        "aliased": aliased[-1] if aliased else 0,
    }
