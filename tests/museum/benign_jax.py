"""Honest variations in JAX that a rule must not stumble over."""

from __future__ import annotations

from typing import Any

import numpy as np

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


class _SnapshotRunning(JaxRunning):
    """The state is copied by a small program before it is read, compiled when it is asked for a first time."""

    snapshot: Any = None

    def state(self) -> Any:
        jax = self.jax
        if self.snapshot is None:
            self.snapshot = jax.jit(lambda tree: jax.tree.map(lambda a: a.copy(), tree))
        held = self.params, self.rest, self.opt_state
        self.params, self.rest, self.opt_state = self.snapshot(held)
        try:
            return {name: np.array(array) for name, array in super().state().items()}
        finally:
            self.params, self.rest, self.opt_state = held


class SnapshotByAProgram(JaxJit):
    running = _SnapshotRunning


class _NumberedRunning(JaxRunning):
    """A handle has the number of its step beside the loss, as a training loop's record has."""

    number = 0

    def step(self, batch: Any) -> Any:
        self.number += 1
        loss, found = super().step(batch)
        return loss, found, self.number


class NumberedHandles(JaxJit):
    running = _NumberedRunning


class _CalledRandomRunning(JaxRunning):
    """The loss is a jitted function that is *called* ``random_features``, as Rahimi and Recht's are; nothing is
    drawn."""

    def _loss(self, params: Any, rest: Any, batch: Any) -> Any:
        whole = super()._loss

        def random_features(params: Any, rest: Any, batch: Any) -> Any:
            return whole(params, rest, batch)

        return self.jax.jit(random_features)(params, rest, batch)


class CalledRandom(JaxJit):
    running = _CalledRandomRunning
