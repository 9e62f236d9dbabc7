"""One step as torch_xla's own counters saw it (names as of torch_xla 2.9.0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def watch(run: Callable[[], Any]) -> dict[str, Any]:
    """What one call of ``run`` did: ``launches`` (graphs that were dispatched), ``reads`` (values that were read to the
    host behind the model's own forward: what a model asks of values on its way is the model's own, transformers looks
    for packed sequences), and ``aliased``: buffers that the last compiled graph took over from its arguments."""
    from torch.nn.modules import module as modules
    from torch_xla.debug import metrics

    def counted(*names: str) -> int:
        return sum(int(metrics.counter_value(name) or 0) for name in names)

    launches, reads = ("CachedCompile", "UncachedCompile"), ("aten::_local_scalar_dense",)
    before, depth = counted(*launches), 0
    # At the end of the outermost module that is called first; a module that is called again in the backward (what was
    # not kept is computed again) is behind it.
    begun, forward = counted(*reads), None

    def enter(*_: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(*_: Any) -> None:
        nonlocal depth, forward
        depth -= 1
        if not depth and forward is None:
            forward = counted(*reads)

    handles = [
        modules.register_module_forward_pre_hook(enter),
        modules.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    data = metrics.metric_data("InputOutputAliasCount")
    aliased = [int(value) for _, value in data[2] if value > 0] if data is not None else []
    return {
        "launches": counted(*launches) - before,
        "reads": counted(*reads) - (begun if forward is None else forward),
        "aliased": aliased[-1] if aliased else 0,
    }
