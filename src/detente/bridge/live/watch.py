"""Has anything that a step was made from been changed since? Cheap enough to ask before every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from detente.bridge.live.python import PLAIN
from detente.bridge.live.sources import Names, Sources, sources
from detente.bridge.refusal import refuse


@dataclass(frozen=True)
class Changes:
    """What moved. ``written`` are names of tensors with new values; ``other`` says what a program must be captured
    anew for; both empty: nothing."""

    written: tuple[str, ...] = ()
    other: tuple[str, ...] = ()


class Watch:
    """Remembers every parameter and buffer of a module (the object, its version counter, ``requires_grad``) and its
    parts, in flat lists.

    The compiled step holds the weights on the device: what is written to the live module is taken over before the next
    step. ``renew`` after the step itself has written. ``outside``: further tensors that the program reads, by name.
    """

    def __init__(self, module: nn.Module, outside: dict[str, torch.Tensor] | None = None) -> None:
        self.module, self.outside = module, outside or {}
        self.renew()

    def renew(self) -> None:
        """What the module holds now is what the step knows."""
        self.parts = list(self.module.modules())
        names: list[str] = []
        pairs: list[tuple[dict[str, Any], str]] = []
        held: list[torch.Tensor | None] = []
        tensors: list[torch.Tensor] = []
        for path, part in self.module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    pairs.append((table, name))
                    held.append(tensor)
                    if tensor is not None:
                        tensors.append(tensor)
                        names.append(f"{path}.{name}" if path else name)
        self._pairs, self._held, self._tensors, self.names = pairs, held, tensors, names
        self._children = [(table, key) for part in self.parts for table in (part._modules,) for key in table]
        self._below = [table[key] for table, key in self._children]
        self._counted = [t for p in self.parts for t in (p._parameters, p._buffers, p._modules)]
        self._counts = list(map(len, self._counted))
        self._all = [*tensors, *self.outside.values()]
        self._all_names = [*names, *self.outside]
        self._versions = [t._version for t in self._all]
        self._trained = [t.requires_grad for t in tensors]

    @property
    def mode(self) -> tuple[bool, ...]:
        """The training flag of every part: train and eval are two programs."""
        return tuple([part.training for part in self.parts])

    @property
    def changed(self) -> bool:
        """Whether ``look`` would find anything."""
        return self.look() is not None

    def look(self) -> Changes | None:
        """What moved; None, and nothing but flat passes, where nothing did."""
        try:
            whole = (
                list(map(len, self._counted)) == self._counts
                and all(a is b for a, b in zip([t[k] for t, k in self._pairs], self._held, strict=True))
                and all(a is b for a, b in zip([t[k] for t, k in self._children], self._below, strict=True))
            )
        except KeyError:
            whole = False
        if not whole:
            return Changes(self._written(), tuple(self._replaced()))
        trained = [t.requires_grad for t in self._tensors]
        if trained != self._trained:
            what = (
                f"{name}.requires_grad is now {now}"
                for name, now, then in zip(self.names, trained, self._trained, strict=True)
                if now != then
            )
            return Changes(self._written(), tuple(what))
        written = self._written()
        return Changes(written) if written else None

    def _written(self) -> tuple[str, ...]:
        """Names of the tensors, of those that were here, that have another version."""
        versions = [t._version for t in self._all]
        if versions == self._versions:
            return ()
        rows = zip(self._all_names, versions, self._versions, strict=True)
        return tuple(name for name, now, then in rows if now != then)

    def _replaced(self) -> list[str]:
        found = [
            f"{key} was replaced"
            for (table, key), tensor in zip(self._pairs, self._held, strict=True)
            if table.get(key) is not tensor
        ]
        return found or ["a part of the module was replaced, added or removed"]


def ambient() -> tuple[str, ...]:
    """torch's own switches around this call, as far as a program depends on them. Raises Refused for those that a step
    would not obey: eager would train in other numbers under them, or not at all."""
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
    return (str(torch.get_default_dtype()),)


class Surroundings:
    """What Python said when the programs were captured, and what it says now."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        self.model, self.loss = model, loss
        self._ran = Names()
        self._sources = Sources().ready()
        self._now: dict[str, str] = {}
        self._first: dict[str, str] = {}  # what the first programs were captured with
        self._others = 0
        self.inputs: set[str] = set()  # names of numbers that programs take as inputs

    def captured(self, ran: Names) -> None:
        """A program was captured; ``ran`` is the code that did it."""
        self._ran |= ran
        self._sources = sources(self.model, self.loss, self._ran)

    def look(self) -> dict[str, tuple[Any, Any]]:
        """What moved since the last look: name -> (then, now). Nothing but flat passes where nothing did."""
        if not self._sources.moved():
            return {}
        found = self._sources.changes()
        if not found:
            self._sources.refresh()
            return {}
        for name, (then, now) in found.items():
            self._first.setdefault(name, self._said(name, then))
            self._now[name] = self._said(name, now)
        if self._sources.are_values(found):
            self._sources.refresh()  # the tables are what they were: no walk over everything
        else:
            self._sources = sources(self.model, self.loss, self._ran)
        return found

    def _said(self, name: str, value: Any) -> str:
        if isinstance(value, PLAIN) and not name.startswith("the size of "):
            return repr(value)
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

    @contextmanager
    def as_it_was(self) -> Iterator[bool]:
        """Python's values as they were at the last look, for as long as the block takes; False where that cannot be
        had, because a table has grown or another object stands in it."""
        moved = self._sources.changes() if self._sources.moved() else {}
        slots = [s for s in self._sources.slots if s[3] in moved]
        cells = [c for c in self._sources.cells if c[2] in moved]
        whole = {name for *_, name in (*slots, *cells)} == moved.keys() and all(
            isinstance(table, dict | list)
            and key in (table if isinstance(table, dict) else range(len(table)))
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
