"""The museum's JAX rows whose fault lies in the process and not in the step."""

from __future__ import annotations

from typing import Any

from detente.stacks.jax_jit import JaxJit
from detente.stacks.jax_running import JaxRunning
from tests.museum import tricks


class _Sleeps(tricks.Sleeps, JaxRunning):
    pass


class SleepsInTheWaitInJax(JaxJit):
    running = _Sleeps


class _Reads(tricks.Reads, JaxRunning):
    pass


class ReadsTheLossInJax(JaxJit):
    """A loss that is read in every step and returned as an array: nothing in the handle shows it."""

    running = _Reads


class _Collects(tricks.Collects, JaxRunning):
    pass


class TurnsTheCollectorOnInJax(JaxJit):
    running = _Collects


class NicedInJax(tricks.Nice, JaxJit):
    pass


class OnOtherCoresInJax(tricks.OtherCores, JaxJit):
    pass


class WithAHelperInJax(tricks.Helper, JaxJit):
    pass


class WithADaemonInJax(tricks.Daemon, JaxJit):
    pass


class UncachedInJax(JaxJit):
    """Has no cold start to compare: it neither reads nor writes the cache that the other rows have."""

    def start(self, device: str, precision: str, threads: int) -> str:
        found = super().start(device, precision, threads)
        self.jax.config.update("jax_enable_compilation_cache", False)
        return found


class _MuteRunning(JaxRunning):
    """Nobody needs the outputs of a train step; whoever asks for them gets an error."""

    def outputs(self, handle: Any) -> Any:
        raise RuntimeError("there are none")


class FailsAProbeInJax(JaxJit):
    running = _MuteRunning


class _SecondRunning(JaxRunning):
    steps = 0

    def step(self, batch: Any) -> Any:
        self.steps += 1
        if self.steps == 2:
            self.jitted = self.jax.jit(self._typed_anew(self.jitted.__wrapped__), donate_argnums=self.donated)
        return super().step(batch)

    @staticmethod
    def _typed_anew(whole: Any) -> Any:
        """The same step as another program, which no cache holds: one operation more, that XLA takes out again."""

        def step(*arguments: Any) -> Any:
            loss, *rest = whole(*arguments)
            return (loss + 0.0, *rest)

        return step


class CompilesTwiceInJax(JaxJit):
    """Its second step compiles again, as one does whose learning rate comes back with another type."""

    running = _SecondRunning


class _OutsideRunning(JaxRunning):
    """Gradients are one program, the update another."""

    def _region(self, region: str) -> Any:
        import optax

        jax, tx = self.jax, self.optimizer
        self._update = jax.jit(tx.update, donate_argnums=(1,))
        self._apply = jax.jit(optax.apply_updates, donate_argnums=(0,))

        def gradients(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            (loss, (_, rest)), found = jax.value_and_grad(self._loss, has_aux=True)(params, rest, batch)
            return loss, found, rest

        return jax.jit(gradients, donate_argnums=(1,)), (1,)

    def step(self, batch: Any) -> Any:
        self._example = batch
        loss, found, self.rest = self.jitted(self.params, self.rest, self.opt_state, batch)
        updates, self.opt_state = self._update(found, self.opt_state, self.params)
        self.params = self._apply(self.params, updates)
        return loss, {}


class OptimizerOutsideInJax(JaxJit):
    running = _OutsideRunning


class _HostBatchRunning(JaxRunning):
    """Batches stay on the host, and every step hands them over."""

    def place(self, batch: Any) -> Any:
        return _Hidden(super().place(batch) and dict(batch))

    def step(self, batch: Any) -> Any:
        return super().step(JaxRunning.place(self, batch.arrays))

    def gradients(self, batch: Any) -> Any:
        return super().gradients(JaxRunning.place(self, batch.arrays))


class _Hidden:
    """An object that does not look like numpy."""

    def __init__(self, arrays: Any) -> None:
        self.arrays = arrays


class PlacesInsideInJax(JaxJit):
    running = _HostBatchRunning
