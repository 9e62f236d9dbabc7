"""The study's JAX loop as a stack: nothing waits for what was dispatched."""

from __future__ import annotations

from typing import Any

from detente.stacks.jax_jit import JaxJit
from detente.stacks.jax_running import JaxRunning


class _Running(JaxRunning):
    def synchronise(self, *handles: Any) -> None:
        pass


class NeverWaits(JaxJit):
    running = _Running
