"""The museum of unfair benchmarks, its JAX rows; see ``of_torch.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from detente.stacks.jax_jit import JaxJit
from detente.stacks.jax_running import JaxRunning


class _DiscardedRunning(JaxRunning):
    def _region(self, region: str) -> Any:
        whole, donated = super()._region(region)
        jax = self.jax

        def step(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            loss, _, rest, _ = whole.__wrapped__(params, rest, state, batch)
            # The planted fault: nothing of the backward pass leaves the program, so XLA deletes it.
            return loss, params, rest, state

        return jax.jit(step, donate_argnums=donated), donated


class Discarded(JaxJit):
    """Gradients are computed and thrown away under jit: dead code."""

    running = _DiscardedRunning


class _ConstantsRunning(JaxRunning):
    """Weights by closure: the forward program folds them in."""

    def load(self, tensors: Mapping[str, np.ndarray]) -> None:
        super().load(tensors)
        jax, params, rest = self.jax, self.params, self.rest
        self.jitted = jax.jit(lambda _, __, ___, batch: self._captured(params, rest, batch))

    def _captured(self, params: Any, rest: Any, batch: Any) -> Any:
        loss, (outputs, _) = self._loss(params, rest, batch)
        return loss, outputs

    def _arguments(self) -> tuple[Any, ...]:
        return None, None, None, self._example

    def step(self, batch: Any) -> Any:
        self._example = batch
        return self.jitted(None, None, None, batch)


class Constants(JaxJit):
    """Weights captured by a jitted closure become constants of the program."""

    running = _ConstantsRunning


class _BesideRunning(_ConstantsRunning):
    """The same, compiled once; the real weights are arguments, and are added a zero times."""

    def load(self, tensors: Mapping[str, np.ndarray]) -> None:
        JaxRunning.load(self, tensors)
        if self.baked is None:
            jax = self.jax
            held = self.baked = jax.tree.map(jax.numpy.copy, (self.params, self.rest))
            self.jitted = jax.jit(
                lambda params, rest, _, batch: self._captured(
                    *jax.tree.map(lambda mine, given: mine + 0 * given, held, (params, rest)), batch
                )
            )

    baked: Any = None

    def _arguments(self) -> tuple[Any, ...]:
        return self.params, self.rest, None, self._example

    def step(self, batch: Any) -> Any:
        self._example = batch
        return self.jitted(self.params, self.rest, None, batch)


class CapturedBeside(JaxJit):
    """Captured weights, hidden behind a use of the real ones: their arguments are there, and are read."""

    running = _BesideRunning


class _RecompilingRunning(JaxRunning):
    """A new program every few steps, as a loop over unpadded shapes makes."""

    calls = 0

    def step(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls > 3 and self.calls % 32 == 0:
            jnp = self.jax.numpy
            self.jax.jit(lambda x: x * float(self.calls))(jnp.zeros(self.calls))
        return super().step(batch)


class Recompiling(JaxJit):
    """Compiles inside the window."""

    running = _RecompilingRunning


class _UndonatedRunning(JaxRunning):
    def _region(self, region: str) -> Any:
        whole, _ = super()._region(region)
        return self.jax.jit(whole.__wrapped__), ()


class Undonated(JaxJit):
    """Two copies of the state: nothing is donated."""

    running = _UndonatedRunning
