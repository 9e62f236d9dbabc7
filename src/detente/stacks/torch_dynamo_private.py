"""The private parts of torch.compile that evidence needs, in one place (tested with torch 2.9 to 2.13).

``self_test`` says which of them a new torch has moved; tests/conformance/stacks runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detente.stacks.protocol import Capture, CompileCount


class DynamoCounters:
    """Compilations, their seconds, and graph breaks, as torch._dynamo counts them."""

    def __init__(self) -> None:
        from torch._dynamo import utils

        self._utils = utils

    def count(self) -> CompileCount:
        """Frames that were traced and compiled so far. A recompilation is another frame."""
        frames = self._utils.counters["frames"]["total"]
        seconds = sum(sum(v) for k, v in self._utils.compilation_time_metrics.items() if k == "_compile.compile_inner")
        backward = sum(sum(v) for k, v in self._utils.compilation_time_metrics.items()
                       if k == "compile_fx.<locals>.bw_compiler")
        return CompileCount(int(frames), float(seconds) + float(backward))

    def graph_breaks(self) -> int:
        """Places where a captured graph ended early."""
        return int(sum(self._utils.counters["graph_break"].values()))


def captured_graphs(function: Callable[..., Any]) -> tuple[Capture, ...]:
    """Nothing yet for torch.compile: FX graphs carry no costs that the audit could count."""
    return ()


def self_test() -> list[str]:
    """What is missing in this torch, by name; empty when everything is where it is expected."""
    from torch._dynamo import utils

    missing = []
    if not hasattr(utils, "counters"):
        missing.append("torch._dynamo.utils.counters")
    if not hasattr(utils, "compilation_time_metrics"):
        missing.append("torch._dynamo.utils.compilation_time_metrics")
    return missing
