"""A JAX step that another row wrote down, on this stack's runtime: compiled, donated and dispatched as its own step is.

The arrays are this stack's own, in the order of its own trees: a program that takes others is not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from detente.stacks.jax_foreign import program_of
from detente.stacks.jax_running import JaxRunning
from detente.stacks.moments import gradients_in
from detente.stacks.protocol import Unavailable


class ExportedRunning(JaxRunning):
    """A train step whose program came from another row. Everything but its text is this stack's."""

    def take(self, file: str, program: str) -> ExportedRunning:
        """Step with the program in ``file`` from now on. Raises Unavailable for one that takes other arrays."""
        if self.contract.region != "train-step":
            raise Unavailable(
                f"only a whole training step is run by another row, not a {self.contract.region}"
            )
        call, taken, _ = program_of(self.jax, Path(file).read_bytes(), self.stack.device.platform)
        jax, own = self.jax, self.jitted

        def step(*arguments: Any) -> Any:
            leaves = jax.tree.leaves(arguments)
            given = [(tuple(a.shape), np.dtype(a.dtype)) for a in leaves]
            wanted = [(tuple(a.shape), np.dtype(a.dtype)) for a in taken]
            if given != wanted:
                raise Unavailable(
                    f"the program of {program} takes {len(wanted)} arrays, and these {len(given)} are not they: it "
                    "keeps its weights in another form"
                )
            return jax.tree.unflatten(jax.tree.structure(jax.eval_shape(own, *arguments)), call(*leaves))

        self.jitted, self.donated = self.form.jit(jax, step, self.donated)
        self._alone = jax.jit(step)
        return self

    def gradients(self, batch: Any) -> dict[str, np.ndarray]:
        """Of the program itself: what its first step leaves in moments that were zero. No program of its own."""
        if self._shapes_alone:
            self._draw()
        zero = self.jax.tree.map(self.jax.numpy.zeros_like, self.opt_state)
        *_, after = self._alone(self.params, self.rest, zero, batch)
        kept, self.opt_state = self.opt_state, after
        try:
            found = self._moments()
        finally:
            self.opt_state = kept
        return gradients_in(found, self.workload.optimizer, np.asarray)

    def practice(self) -> str:
        return f"another row's program on JAX's runtime; {super().practice()}"
