"""The optimizer state that nothing has stepped yet, made where and how the first step wants it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.lower.precision import x64
from detente.bridge.roll.stacks import Stacks

Init = Callable[[Mapping[str, Any], Any], dict[str, dict[str, Any]]]


class Births:
    """One small program per layout that makes the whole first state, instead of one per shape.

    ``init(params, hyper)`` is the rule's own; ``names`` are the parameters that it knows, by torch's names.
    """

    def __init__(self, init: Init, names: frozenset[str]) -> None:
        self.init, self.names = init, names
        self._programs: dict[Any, Any] = {}

    def at(self, hyper: Any) -> Birth:
        """The state that a first step with these numbers begins from."""
        return Birth(self, hyper)

    def program(self, stacks: Stacks) -> Any:
        """``(values by the program's names, hyper) -> state by the program's names``, compiled once per layout."""
        if stacks.rows not in self._programs:

            def made(values: Any, hyper: Any) -> Any:
                return stacks.join(self.by_torch_names(stacks.split(values), hyper), stacked)

            self._programs[stacks.rows] = jax.jit(made)
        return self._programs[stacks.rows]

    def by_torch_names(self, values: Mapping[str, Any], hyper: Any) -> Any:
        return self.init({n: v for n, v in values.items() if n in self.names}, hyper)


class Birth:
    """State that is not there yet."""

    def __init__(self, births: Births, hyper: Any) -> None:
        self.births, self.hyper = births, hyper

    def make(self, values: dict[str, Any], stacks: Stacks) -> dict[str, dict[str, Any]]:
        """Make it, under the names of the program whose layout is ``stacks``."""
        with x64():
            return self.births.program(stacks)(values, self.hyper)

    def shapes(self, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Its shapes by torch's names; ``values`` are arrays or shapes by torch's names."""
        with x64():
            return jax.eval_shape(self.births.by_torch_names, values, self.hyper)


def stacked(rows: list[Any]) -> Any:
    """Pytrees of arrays that are all alike, as one with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
