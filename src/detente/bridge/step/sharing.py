"""Steps that train one module together (a GAN's two, an actor and its critic), and steps that only look like it.

Every step holds the weights on the device, in the layout of its own programs. Steps of one group (``share=``) take over
what the others have changed since, before they run or are read; a clock orders the changes. Steps of one module that
share nothing are what a comparison wants and what a GAN does not: where one goes on from what it copied before another
trained, it warns. What only the loss of a step holds is another matter: a teacher that a step of its own trains is the
trained one for every step that reads it.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from detente.bridge.step.certified import Certified
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
        self.born = next(_clock)
        self._lenders: list[weakref.ref[Exchange]] = []
        self._asked = 0
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
        Sharing.held_anew()

    changes: ClassVar[int] = 0  # how often a step was made, or read something anew

    @staticmethod
    def held_anew() -> None:
        """Some step holds other tensors than it did."""
        Sharing.changes += 1

    def lenders(self) -> list[weakref.ref[Exchange]]:
        """The steps that train what the loss of this one holds."""
        if self._asked != Sharing.changes:
            self._asked, step = Sharing.changes, self.step()
            held = set() if step is None else {id(tensor) for tensor in step._held.values()}
            others = [one for one in _live if one is not step and one not in self.others] if held else []
            found = (one for one in others if not held.isdisjoint(map(id, _own(one).values())))
            self._lenders = [weakref.ref(one) for one in found]
        return self._lenders

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
        """This step has run. Warns once where one that it does not share with has run since it did, or was made."""
        before = self.moved or self.born
        self._move()
        if not self.apart or self.warned:
            return
        step = self.step()
        for stranger in self.apart:
            if step is not None and stranger.sharing.moved > before and (names := trained(stranger, step)):
                self.warned = True
                warnings.warn(
                    f"{min(names)} is trained by another step, too, and each keeps its own value: compile one of them "
                    "with share= the other where they train the module together or one after the other, and each with "
                    "a copy.deepcopy of it where they are compared",
                    stacklevel=4,
                )


def same_tensors(one: Certified, other: Certified) -> dict[str, str]:
    """Names in ``one`` -> names in ``other`` of the tensors that both hold."""
    theirs = {id(tensor): name for name, tensor in other.weights.tensors.items()}
    return {name: theirs[id(t)] for name, t in one.weights.tensors.items() if id(t) in theirs}


def trained(one: Exchange, other: Exchange) -> set[str]:
    """Names in ``one`` of what its optimizer trains and is of the module of ``other``, too."""
    mine = {id(p) for group in one.optimizer.param_groups for p in group["params"]}
    theirs = {id(tensor) for tensor in _own(other).values()}
    return {name for name, tensor in one.weights.tensors.items() if id(tensor) in mine & theirs}


def _own(step: Exchange) -> dict[str, torch.Tensor]:
    """The module's tensors, without those that the loss holds."""
    return {name: tensor for name, tensor in step.weights.tensors.items() if name not in step._held}
