"""JAX with the optimizer outside of the program: loss and gradients are one executable, the update is another."""

from __future__ import annotations

from typing import Any

from detente.stacks.jax_running import JaxRunning, captures_of
from detente.stacks.protocol import Capture


class OutsideRunning(JaxRunning):
    """A train step in two executables. Gradients are written by the first and taken over by the second; each donates
    what the whole step would have donated, so that nothing else is different."""

    def _region(self, region: str) -> tuple[Any, tuple[int, ...]]:
        jax = self.jax

        def gradient(params: Any, rest: Any, batch: Any) -> Any:
            (loss, (_, rest)), found = jax.value_and_grad(self._loss, has_aux=True)(params, rest, batch)
            return loss, rest, found

        def update(params: Any, state: Any, found: Any) -> Any:
            return self._after_update(params, found, state)

        self._first, _ = self.form.jit(jax, gradient, (1,))
        self._second, kept = self.form.jit(jax, update, (0, 1, 2))

        def step(params: Any, rest: Any, state: Any, batch: Any) -> Any:
            loss, rest, found = self._first(params, rest, batch)
            params, state = self._second(params, state, found)
            return loss, params, rest, state

        return step, (0, 1, 2) if kept else ()

    def _lowered(self) -> tuple[Any, Any]:
        first = self._first.lower(self.params, self.rest, self._example)
        found = self.jax.eval_shape(self._first, self.params, self.rest, self._example)[2]
        return first, self._second.lower(self.params, self.opt_state, found)

    def _compile_again(self) -> Any:
        """The executable with the larger plan: activations are live in the first."""
        return self._lowered()[0].compile()

    def practice(self) -> str:
        return f"{super().practice()}; the optimizer in a program of its own"

    def programs(self) -> tuple[Capture, ...]:
        if self._example is None:
            return ()
        first, second = self._lowered()
        found = captures_of("gradient", first, first.compile()) + captures_of(
            "update", second, second.compile()
        )
        return found + self._profile()
