"""What a step keeps between steps: weights, buffers and optimizer state on the device, in the program's
layout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detente.bridge.lower.precision import x64
from detente.bridge.optim.run import STARTED
from detente.bridge.program.program import shape_of
from detente.bridge.roll.stacks import Stacks
from detente.bridge.state.birth import Birth, row_shape, stacked
from detente.bridge.state.freed import give_back

Arrays = dict[str, Any]


class State:
    """``values`` (weights and buffers) and ``optimizer`` (``{name: {key: array}}``) by the names of the
    program that ran last: torch's, or one stacked name for the same tensor of every rolled layer. Both are
    donated to each step and replaced by what it returns.

    ``optimizer`` may be a ``Birth``: state that nothing has stepped yet. It is made when it is first read, in the
    layout that holds then: making it by torch's names and stacking it afterwards would fill its memory twice.
    """

    def __init__(
        self, values: Arrays, optimizer: dict[str, Arrays] | Birth, stacks: Stacks | None = None
    ) -> None:
        self.values, self._optimizer, self.stacks = values, optimizer, stacks or Stacks()

    @property
    def optimizer(self) -> dict[str, Arrays]:
        self.bear()
        assert not isinstance(self._optimizer, Birth)
        return self._optimizer

    def bear(self) -> None:
        """Make the first state, where nobody has read it yet."""
        if isinstance(self._optimizer, Birth):
            self._optimizer = self._optimizer.make(self.values, self.stacks)

    def begin(self, stacks: Stacks) -> None:
        """Have the first state made by another thread, for a program in this layout; nothing where it is another one
        than holds now, or there is a state already."""
        if isinstance(self._optimizer, Birth) and stacks.rows == self.stacks.rows:
            self._optimizer.begin(self.values, stacks)

    @optimizer.setter
    def optimizer(self, value: dict[str, Arrays]) -> None:
        self._optimizer = value

    def arrange(self, stacks: Stacks) -> None:
        """Into the layout of another program. Copies what changes its place, and nothing when it is the
        same."""
        if stacks.rows == self.stacks.rows:
            return
        born = not isinstance(self._optimizer, Birth)
        with x64():
            values = self.stacks.split(self.values)
            self.values = {}  # the rows of a stack go as soon as it is made: nothing is held twice
            self.values = stacks.gather(values, _stack)
            if born:
                optimizer, self._optimizer = self.stacks.split(self.optimizer, _row), {}
                self._optimizer = stacks.gather(optimizer, lambda rows: jax.block_until_ready(stacked(rows)))
        self.stacks = stacks
        give_back()

    def copied(self, stacks: Stacks) -> State:
        """Another state of the same values, in the layout of a program with these stacks: to take steps on."""
        with x64():  # outside of it a copy would cut int64 and float64 down
            made = State(*jax.tree.map(lambda a: a.copy(), self.by_torch_names()))
        made.arrange(stacks)
        return made

    def take(self, other: State, names: dict[str, str], *, optimizer: bool) -> None:
        """Copies of another state's arrays: ``names`` maps its names (torch's) to the names here. ``optimizer``: their
        optimizer state, too, where it has any."""
        with x64():
            if any(mine in self.stacks.place for mine in names.values()):
                self.arrange(Stacks())
            for theirs, mine in names.items():
                self.values[mine] = jnp.copy(other.value(theirs))
            if optimizer and not isinstance(other._optimizer, Birth):
                states = other.stacks.split(other.optimizer, _row)
                self.arrange(Stacks())
                mine = self.optimizer
                found = {
                    name: _as(mine.get(name), states[theirs])
                    for theirs, name in names.items()
                    if theirs in states
                }
                self.optimizer = {**mine, **jax.tree.map(jnp.copy, found)}

    def by_torch_names(self) -> tuple[Arrays, dict[str, Arrays]]:
        """``(values, optimizer state)`` under torch's names; rows of a stack are copies."""
        with x64():
            return self.stacks.split(self.values), self.stacks.split(self.optimizer, _row)

    def on_host(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """``by_torch_names()`` as numpy. On the CPU these are views of the arrays themselves, a stack's rows too: the
        next step finds its memory taken, and copies, as long as one of them lives."""
        with x64():
            values, optimizer = (jax.tree.map(np.asarray, held) for held in (self.values, self.optimizer))
        return self.stacks.split(values), self.stacks.split(optimizer, _row)

    def shapes(self) -> tuple[Arrays, dict[str, Arrays]]:
        """The shapes and dtypes of ``by_torch_names()``; makes and copies nothing."""
        values = self.stacks.split(jax.tree.map(shape_of, self.values), row_shape)
        if isinstance(self._optimizer, Birth):
            return values, self._optimizer.shapes(values)
        return values, self.stacks.split(jax.tree.map(shape_of, self._optimizer), row_shape)

    def names(self) -> tuple[str, ...]:
        """torch's names of the weights and buffers."""
        return tuple(self.stacks.split(dict.fromkeys(self.values), lambda value, row: value))

    def value(self, name: str) -> Any:
        """One tensor by its canonical torch name."""
        if name in self.stacks.place:
            whole, row = self.stacks.place[name]
            with x64():
                return self.values[whole][row]
        return self.values[name]


def _as(mine: Any, theirs: Any) -> Any:
    """The leaves of one parameter in another step's state as those of this one: the other may keep an average, which is
    its own, and may have been traced behind the first step, which it then does not mark."""
    if mine is None or mine.keys() == theirs.keys():
        return theirs
    own = {name: jnp.ones_like(leaf) if name == STARTED else leaf for name, leaf in mine.items()}
    return own | {name: leaf for name, leaf in theirs.items() if name in mine}


def _stack(rows: list[Any]) -> Any:
    """Waited for: a host that runs ahead of the device would hold every row and every stack at once."""
    return jax.block_until_ready(jnp.stack(rows))


def _row(leaves: Any, k: int) -> Any:
    return jax.tree.map(lambda a: a[k], leaves)
