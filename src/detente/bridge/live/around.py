"""What Python and torch say around a step: values that programs were captured with, and torch's own switches."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from detente.bridge.live.modes import Modes
from detente.bridge.live.places import OfClass
from detente.bridge.live.python import PLAIN, users
from detente.bridge.live.ran import Names
from detente.bridge.live.sources import Sources
from detente.bridge.live.walk import sources
from detente.bridge.private import saved_tensors_hooks, with_users_modes, without_saved_tensors_hooks
from detente.bridge.refusal import refuse

# Of a library these do the same as long as they are the same object. What a user's leads to may have moved meanwhile.
_ITSELF = (types.FunctionType, types.BuiltinFunctionType, type)


def ambient(modes: Modes) -> tuple[str, ...]:
    """torch's own switches around this call, as far as a program depends on them. Raises Refused for those that a step
    would not obey: eager would train in other numbers under them, or not at all. ``modes`` are those of the step."""
    if torch.is_autocast_enabled("cpu"):
        raise refuse(
            "around", f"torch.autocast to {torch.get_autocast_dtype('cpu')} is on around the call of the step"
        )
    if not torch.is_grad_enabled():
        raise refuse(
            "around",
            "gradients are switched off around the call of the step (torch.no_grad or inference_mode), where eager has "
            "nothing to train",
            hint="call the step outside of it; step.evaluate(batch) computes without gradients",
        )
    hooks = saved_tensors_hooks()
    if hooks is not None and not any((hook.__module__ or "").startswith("torch.") for hook in hooks[:1]):
        raise refuse(
            "around",
            "torch.autograd.graph.saved_tensors_hooks are on around the call of the step, which packs nothing: eager's "
            "backward would compute with what they give back",
            hint="call the step outside of them",
        )
    modes.check()
    return (str(torch.get_default_dtype()),)


@contextmanager
def undisturbed(modes: Modes, default: torch.dtype) -> Iterator[None]:
    """Around a certificate, which whoever reads a weight may begin: what is on around them (inference mode, autocast,
    hooks, a mode) is no part of the step that is compared. Inside it is as around that step: no autocast, gradients,
    its modes, its ``default`` dtype."""
    now = torch.get_default_dtype()
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        without_saved_tensors_hooks(),
        with_users_modes(modes.held),
        nullcontext() if now == default else _default_dtype(default),
    ):
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Filled(Protocol):
    """The places that steps fill, which are looked at in another way."""

    @property
    def places(self) -> Mapping[int, frozenset[Any]]: ...

    def strange(self) -> dict[str, tuple[Any, Any]]: ...


class Surroundings:
    """What Python said when the programs were captured, and what it says now."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any], filled: Filled) -> None:
        self.model, self.loss, self.filled = model, loss, filled
        self._ran = Names()
        self._sources = Sources().ready()
        self._now: dict[str, str] = {}
        self._first: dict[str, str] = {}  # what the first programs were captured with
        self._others = 0
        self._known: dict[
            int, tuple[int, Any]
        ] = {}  # functions and classes that stood somewhere, with a number each
        self._told: set[str] = set()  # names of what is not looked at as a whole
        self.inputs: set[str] = set()  # names of numbers that programs take as inputs

    def captured(self, ran: Names) -> None:
        """A program was captured; ``ran`` is the code that did it. What it left in Python for good (made_once.py) is
        another value for the programs of before."""
        if self._sources.moved():
            self._note(self._sources.changes())
        self._ran |= ran
        self._sources = self._walked()
        fresh = [name for name in self._sources.partly if name not in self._told]
        self._told.update(fresh)
        if fresh:
            warnings.warn(
                f"{', '.join(fresh)} is more than a step looks at, and a value that moves in it may not be noticed: "
                "hold what the step reads of it in an attribute of its own, a tensor or the batch",
                stacklevel=6,
            )

    def look(self) -> dict[str, tuple[Any, Any]]:
        """What moved since the last look: name -> (then, now). Nothing but flat passes where nothing did."""
        strange = self.filled.strange()
        if not strange and not self._sources.moved():
            return {}
        found = self._sources.changes() | strange
        if not found:
            self._sources.refresh()
            return {}
        self._note(found)
        if self._sources.are_values(found):
            self._sources.refresh()  # the tables are what they were: no walk over everything
        else:
            self._sources = self._walked()
        return found

    def _note(self, found: Mapping[str, tuple[Any, Any]]) -> None:
        for name, (then, now) in found.items():
            self._first.setdefault(name, self._said(name, then))
            self._now[name] = self._said(name, now)

    def _walked(self) -> Sources:
        return sources(self.model, self.loss, self._ran).without(self.filled.places)

    def _said(self, name: str, value: Any) -> str:
        if isinstance(value, PLAIN) and not name.startswith("the size of "):
            return repr(value)
        if isinstance(value, _ITSELF) and not users(value):  # put back, it is what it was
            number, _ = self._known.setdefault(id(value), (len(self._known) + 1, value))
            return f"{value.__name__} ({number})"
        # Another object: what it says is not told by its name.
        self._others += 1
        return f"another object ({self._others})"

    @property
    def ran(self) -> Names:
        """The code whose names count."""
        return self._ran

    @property
    def moved(self) -> bool:
        """Whether anything may have moved since the last look."""
        return self._sources.moved()

    def as_it_was(self) -> AbstractContextManager[bool]:
        """Python's values as they were at the last look, for as long as the block takes; False where that cannot be
        had."""
        return as_they_were(self._sources)

    @property
    def token(self) -> tuple[tuple[str, str], ...]:
        """Of everything that moved, and is not back where it was at first, what it says now: part of what a program is
        found by."""
        return tuple(
            sorted(
                (name, now)
                for name, now in self._now.items()
                if name not in self.inputs and now != self._first[name]
            )
        )


@contextmanager
def as_they_were(found: Sources) -> Iterator[bool]:
    """These values as they were when they were found, for as long as the block takes; False where that cannot be had,
    because a table has grown or another object stands in it."""
    moved = found.changes() if found.moved() else {}
    slots = [s for s in found.slots if s[3] in moved]
    cells = [c for c in found.cells if c[2] in moved]
    same_places = not found.replaced and {n for *_, n in (*slots, *cells)} == moved.keys()
    whole = same_places and all(
        isinstance(table, dict | list | OfClass)
        and key in (range(len(table)) if isinstance(table, list) else table)
        for table, key, *_ in slots
    )
    if not whole:
        yield False
        return
    now = [(table, key, table[key]) for table, key, *_ in slots]
    held = [(cell, cell.cell_contents) for cell, *_ in cells]
    try:
        for table, key, then, _ in slots:
            table[key] = then
        for cell, then, _ in cells:
            cell.cell_contents = then
        yield True
    finally:
        for table, key, value in now:
            table[key] = value
        for cell, value in held:
            cell.cell_contents = value
