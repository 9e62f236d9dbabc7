"""What the step of a user's own optimizer reads besides groups, gradients and state: ``self.rho``, a class attribute, a
global, what a closure holds. A traced rule is a copy of what those said; where one moved, the rule is traced anew.

How it can fail: what no table of Python's holds, as for a model (bridge/live/sources.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from detente.bridge.live.around import as_they_were
from detente.bridge.live.python import PLAIN
from detente.bridge.live.ran import Names, Ran
from detente.bridge.live.sources import Sources, named
from detente.bridge.live.trains import OF_OPTIMIZERS
from detente.bridge.live.walk import Walk
from detente.bridge.live.writes import same
from detente.bridge.private import plainly
from detente.bridge.refusal import refuse


@dataclass
class Reads:
    """What a rule was traced with; of torch's own optimizers nothing. ``versions`` are those of its tensors."""

    sources: Sources = field(default_factory=lambda: Sources().ready())
    versions: list[tuple[torch.Tensor, int]] = field(default_factory=list)

    @property
    def moved(self) -> bool:
        """Whether the rule must be traced anew. Flat passes, where nothing did."""
        if self.versions and plainly(self._written):
            return True
        if not self.sources.moved():
            return False
        if self.sources.changes() or self.sources.replaced:
            return True
        self.sources.refresh()
        return False

    @contextmanager
    def as_it_was(self) -> Iterator[bool]:
        """What the rule was traced with, for as long as the block takes; False where that cannot be had."""
        if self.versions and plainly(self._written):
            yield False
            return
        with as_they_were(self.sources) as whole:
            yield whole

    def _written(self) -> bool:
        return any([tensor._version != version for tensor, version in self.versions])


def reads(model: nn.Module, optimizer: Any, ran: Names, *, attributes: bool) -> Reads:
    """What the code that ``ran`` asks for. ``attributes``: those of the optimizer itself, too, which a rule of all
    parameters together (bridge/optim/joint_rule.py) has as inputs and counts."""
    if type(optimizer).__module__.startswith("torch.optim"):
        return Reads()
    walk = Walk(model, ran, trains=False)  # what trains inside of it has the rule's own inputs
    if attributes:
        table = vars(optimizer)

        def counts(key: str) -> bool:
            return key in ran and key not in OF_OPTIMIZERS

        walk.found.sizes.append((table, len(table), "optimizer"))
        walk.found.keys[id(table)] = frozenset(table)
        walk.found.counted[id(table)] = counts, frozenset(filter(counts, table))
        for key in filter(counts, list(table)):
            walk._slot(table, key, table[key], f"optimizer.{key}")
    walk.kind(type(optimizer))
    found = walk.found.ready()
    return Reads(found, plainly(lambda: [(t, t._version) for t in found.tensors.values()]))


@contextmanager
def noting(model: nn.Module, optimizer: Any) -> Iterator[Ran]:
    """The code that runs in the block, which traces the optimizer's step. Raises Refused where that code counts in a
    class or a global (eager would count in every step), and where it finds parameters somewhere else than in the
    optimizer: a trace has others in their place, and so have the copies that a certificate trains."""
    before = reads(model, optimizer, Names(any=True), attributes=False).sources
    with Ran() as ran:
        yield ran
    changes = before.changes()
    counted = {
        name: (then, now)
        for name, (then, now) in changes.items()
        if isinstance(then, PLAIN) and isinstance(now, PLAIN) and not same(then, now)
    }
    if counted:
        before.put_back()
        raise refuse(
            "optimizer",
            f"{type(optimizer).__name__}.step() writes {', '.join(named(counted))} in every step, which a program does "
            "not repeat",
            hint="keep it in param_groups or in an attribute of the optimizer",
        )
    if where := _with_parameters(reads(model, optimizer, ran.names(), attributes=False).sources, optimizer):
        raise refuse(
            "optimizer",
            f"{type(optimizer).__name__}.step() finds parameters in {where}, and a trace has others in their place",
            hint="keep what is special about a parameter in its group, or in a dictionary by parameter that is an "
            "attribute of the optimizer",
        )


def _with_parameters(found: Sources, optimizer: Any) -> str:
    """The first place in which one of the optimizer's parameters stands, by itself, as a key, in a set or by its
    ``id()``; empty where there is none."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}

    def among(values: Iterable[Any]) -> bool:
        return any(id(value) in own or (type(value) is int and value in own) for value in values)

    places = [(name, (value,)) for _, _, value, name in found.slots]
    places += [(name, (value,)) for _, value, name in found.cells]
    places += [(name, then) for _, then, name in found.sets]
    places += [(name, table) for table, _, name in found.sizes if isinstance(table, dict)]
    return next((name for name, values in places if among(values)), "")
