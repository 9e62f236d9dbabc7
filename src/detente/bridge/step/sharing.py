"""Steps that train one module together (a GAN's two, an actor and its critic), and steps that only look like it.

Every step holds the weights on the device, in the layout of its own programs. Steps of one group (``share=``) take over
what the others have changed since, before they run or are read; a clock orders the changes. Steps of one module that
share nothing are what a comparison wants and what a GAN does not: where they take turns, the second turn warns.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detente.bridge.step.exchange import Exchange

_clock = itertools.count(1)
_live: weakref.WeakSet[Exchange] = weakref.WeakSet()


class Turns:
    """Of steps of one module that share nothing: when any of them changed something last. It outlives each of them: the
    values of one that goes are no news where another moved on."""

    def __init__(self) -> None:
        self.last = 0


class Sharing:
    """A step's place in its group; a step that shares with none is a group of one."""

    def __init__(self, step: Exchange, other: Exchange | None) -> None:
        self.step = weakref.ref(step)
        # The newest value of a tensor may be any member's, so they keep one another alive.
        self.others: list[Exchange] = [] if other is None else [other, *other.sharing.others]
        for member in self.others:
            member.sharing.others.append(step)
        self.moved, self.seen = 0, 0  # when this step last changed something, and last looked at the others
        self.whole = False  # whether it changed everything (it was loaded), and not only what it trains
        self.apart: weakref.WeakSet[Exchange] = weakref.WeakSet()
        self.warned = False
        self.turns = Turns() if other is None else other.sharing.turns
        for stranger in _live:
            if stranger not in self.others and trained(stranger, step) | trained(step, stranger):
                self.apart.add(stranger)
                stranger.sharing.apart.add(step)
                self.turns.last = max(self.turns.last, stranger.sharing.turns.last)
                for member in (stranger, *stranger.sharing.others, *stranger.sharing.apart):
                    if member is not step:  # which has none yet
                        member.sharing.turns = self.turns
        _live.add(step)

    def newer(self) -> list[Exchange]:
        """The members that changed something since this one looked, the oldest change first."""
        found = [member for member in self.others if member.sharing.moved > self.seen]
        return sorted(found, key=lambda member: member.sharing.moved)

    def looked(self) -> None:
        self.seen = next(_clock)

    def loaded(self) -> None:
        """This step was given new values for everything: they are the group's."""
        self._move()
        self.whole = True

    def _move(self) -> None:
        self.moved = self.seen = self.turns.last = next(_clock)

    def overtaken(self) -> bool:
        """Whether a step outside of the group has changed something since this group did."""
        return self.turns.last > max((self.moved, *(member.sharing.moved for member in self.others)))

    def ran(self) -> None:
        """This step has run. Warns once where it took turns with a step that it does not share with."""
        before = self.moved
        self._move()
        if not self.apart or self.warned or not before:
            return
        step = self.step()
        for stranger in self.apart:
            if step is not None and stranger.sharing.moved > before and (names := trained(stranger, step)):
                self.warned = True
                warnings.warn(
                    f"{min(names)} is trained by another step, too, and each keeps its own value: compile one of them "
                    "with share= the other where they train the module together",
                    stacklevel=4,
                )


def same_tensors(one: Exchange, other: Exchange) -> dict[str, str]:
    """Names in ``one`` -> names in ``other`` of the tensors that both hold."""
    theirs = {id(tensor): name for name, tensor in other.weights.tensors.items()}
    return {name: theirs[id(t)] for name, t in one.weights.tensors.items() if id(t) in theirs}


def trained(one: Exchange, other: Exchange) -> set[str]:
    """Names in ``one`` of what its optimizer trains and ``other`` holds."""
    held = {id(p) for group in one.optimizer.param_groups for p in group["params"]}
    return {name for name in same_tensors(one, other) if id(one.weights.tensors[name]) in held}
