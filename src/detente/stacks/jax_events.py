"""Compile events from ``jax.monitoring`` (tested with jax 0.10.2; written for 0.7 on)."""

from __future__ import annotations

import jax.monitoring

from detente.stacks.protocol import CompileCount

# Names as jax/_src/dispatch.py registers them; `tests/conformance/stacks` fails if a jit no longer emits them.
_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"


class CompileListener:
    """Counts backend compilations and sums the seconds of lowering and compiling. Traces nest and their durations
    overlap, so they are left out."""

    def __init__(self) -> None:
        self._events, self._seconds = 0, 0.0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, name: str, seconds: float, **_: object) -> None:
        if name == _COMPILE:
            self._events += 1
        if name in (_LOWER, _COMPILE):
            self._seconds += seconds

    def count(self) -> CompileCount:
        """So far."""
        return CompileCount(self._events, self._seconds)
