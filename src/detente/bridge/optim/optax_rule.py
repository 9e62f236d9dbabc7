"""An optax transformation in the place of a torch optimizer: the same interface as ``rule.Rule``.

For ``detente.functional``, and for people who want an optax chain on an unmodified torch module. optax sees all
parameters at once, so a chain may couple them (``clip_by_global_norm``). A tensor that the module ties appears
once. State is optax's own pytree; there is no torch optimizer to read it from or write it to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from detente.bridge.optim.run import unless

Arrays = Mapping[str, jax.Array]


@dataclass(frozen=True)
class OptaxRule:
    """``transformation`` is an ``optax.GradientTransformation`` (or ``...ExtraArgs``), ``names`` the parameters
    that it trains. Hyper-parameters belong to the transformation (``optax.inject_hyperparams`` for schedules)."""

    transformation: Any
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not (
            callable(getattr(self.transformation, "init", None))
            and callable(getattr(self.transformation, "update", None))
        ):
            raise TypeError(
                f"expected an optax transformation (init and update), not {type(self.transformation).__name__}; "
                "torch optimizers go through detente.compile"
            )

    @property
    def separate(self) -> bool:
        """optax may couple parameters, so none is updated before all gradients exist."""
        return False

    def hyper(self) -> tuple[()]:
        """Nothing changes from outside between steps."""
        return ()

    def init(self, params: Arrays, hyper: Sequence[Any] = ()) -> Any:
        """``transformation.init`` on the trained parameters by name. JAX-traceable."""
        return self.transformation.init(self._mine(params))

    def apply(
        self,
        params: Arrays,
        grads: Mapping[str, jax.Array | None],
        state: Any,
        hyper: Sequence[Any] = (),
        stacks: Mapping[str, Sequence[str]] | None = None,
        skip: jax.Array | None = None,
    ) -> tuple[dict[str, jax.Array], Any]:
        """One step: ``(params, state)``. Every trained parameter needs a gradient: optax has no notion of a
        parameter without one. Raises KeyError with the name that lacks it. A stacked parameter is one leaf. ``skip``,
        a 0-d bool: everything stays as it was."""
        import optax

        mine = self._mine(params)
        lacking = [name for name in mine if grads.get(name) is None]
        if lacking:
            raise KeyError(f"no gradient for {', '.join(lacking)}; leave it out of the rule's names")
        updates, moved = self.transformation.update({name: grads[name] for name in mine}, state, mine)
        new = optax.apply_updates(mine, updates)
        new, moved = jax.tree.map(partial(unless, skip), (new, moved), (mine, state))
        return {**params, **new}, moved

    def _mine(self, params: Arrays) -> dict[str, jax.Array]:
        return {name: params[name] for name in self.names}
