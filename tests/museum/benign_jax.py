"""Honest variations in JAX that a rule must not stumble over."""

from __future__ import annotations

from typing import Any

from detente.stacks.jax_jit import JaxJit
from detente.stacks.jax_running import JaxRunning


class _AheadRunning(JaxRunning):
    """The step is compiled ahead of time and called without jit's dispatch."""

    made: Any = None

    def step(self, batch: Any) -> Any:
        if self.made is None:
            self._example = batch
            self.made = self.jitted.lower(*self._arguments()).compile()
        self._example = batch
        loss, self.params, self.rest, self.opt_state = self.made(
            self.params, self.rest, self.opt_state, batch
        )
        return loss, {}


class AheadOfTime(JaxJit):
    running = _AheadRunning


class _BlocksRunning(JaxRunning):
    """Waits for each step before it starts the next: slower, and nobody's fault."""

    def step(self, batch: Any) -> Any:
        return self.jax.block_until_ready(super().step(batch))


class BlocksEachStep(JaxJit):
    running = _BlocksRunning
