"""What a step keeps between steps: weights, buffers and optimizer state on the device, in the program's
layout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from detente.bridge.lower.precision import x64
from detente.bridge.roll.stacks import Stacks

Arrays = dict[str, Any]


class State:
    """``values`` (weights and buffers) and ``optimizer`` (``{name: {key: array}}``) by the names of the
    program that ran last: torch's, or one stacked name for the same tensor of every rolled layer. Both are
    donated to each step and replaced by what it returns."""

    def __init__(self, values: Arrays, optimizer: dict[str, Arrays], stacks: Stacks | None = None) -> None:
        self.values, self.optimizer, self.stacks = values, optimizer, stacks or Stacks()

    def arrange(self, stacks: Stacks) -> None:
        """Into the layout of another program. Copies what changes its place, and nothing when it is the
        same."""
        if stacks.rows == self.stacks.rows:
            return
        values, optimizer = self.by_torch_names()
        with x64():
            self.values = stacks.join(values, jnp.stack)
            self.optimizer = stacks.join(optimizer, lambda rows: jax.tree.map(lambda *r: jnp.stack(r), *rows))
        self.stacks = stacks

    def by_torch_names(self) -> tuple[Arrays, dict[str, Arrays]]:
        """``(values, optimizer state)`` under torch's names; rows of a stack are copies."""
        with x64():
            values = self.stacks.split(self.values)
            optimizer = self.stacks.split(
                self.optimizer, lambda leaves, k: jax.tree.map(lambda a: a[k], leaves)
            )
        return values, optimizer

    def names(self) -> tuple[str, ...]:
        """torch's names of the weights and buffers."""
        return tuple(self.stacks.split(dict.fromkeys(self.values), lambda value, row: value))

    def value(self, name: str) -> Any:
        """One tensor by its canonical torch name."""
        if name in self.stacks.place:
            stacked, row = self.stacks.place[name]
            with x64():
                return self.values[stacked][row]
        return self.values[name]
