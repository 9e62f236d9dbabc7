"""Has anything of the module that a step was made from been changed since? Cheap enough to ask before every step."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import nn

from detente.bridge.live.places import Places
from detente.bridge.live.unheard import Unheard
from detente.bridge.private import plainly

_TABLES = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class Changes:
    """What moved. ``written`` are names of tensors with new values; ``other`` says what a program must be captured
    anew for; both empty: nothing."""

    written: tuple[str, ...] = ()
    other: tuple[str, ...] = ()


class Watch:
    """Remembers every parameter and buffer of a module (the object, its version counter, ``requires_grad``) and its
    parts with their classes, in flat lists.

    The compiled step holds the weights on the device: what is written to the live module is taken over before the next
    step. ``wrote`` after the step itself has written. ``outside``: further tensors that the program reads, by name.
    """

    def __init__(self, module: nn.Module, outside: dict[str, torch.Tensor] | None = None) -> None:
        self.module, self.outside = module, outside or {}
        self.renew()

    def renew(self) -> None:
        """What the module holds now is what the step knows."""
        self.parts = list(self.module.modules())
        self._attributes = [vars(part) for part in self.parts]
        self._kinds = list(map(type, self.parts))
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        rows: list[tuple[dict[str, Any], str, torch.Tensor | None]] = []
        for path, part in self.module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    rows.append((table, name, tensor))
                    if tensor is not None:
                        tensors.append(tensor)
                        names.append(f"{path}.{name}" if path else name)
        held = [(own, key, own[key]) for own in self._attributes for key in _TABLES]
        self._rows, self._tensors, self.names = rows, tensors, names
        tables = [table for *_, table in held if table]
        self._compared = [table for table in tables if all(map(_other_when_another, table.values()))]
        self._copies = [dict(table) for table in self._compared]
        self._counted = [table for table in tables if not all(map(_other_when_another, table.values()))]
        self._counts = list(map(len, self._counted))
        strict = ((table, key, value) for table in self._counted for key, value in table.items())
        self._places = Places([*strict, *(row for row in held if row[2])])
        self._empty = [table for *_, table in held if not table]
        self._all = [*tensors, *self.outside.values()]
        self._all_names = [*names, *self.outside]
        self._sizes = plainly(self._sized)
        self._unheard = plainly(Unheard, self._all_names, self._all)
        self._versions, self._trained = plainly(self._moving)

    def resized(self) -> list[str]:
        """What has another shape or dtype since, through ``.data`` or in place: another program's."""
        now = plainly(self._sized)
        return [
            f"{name} is {str(to[1])[6:]}{list(to[0])} now, and was {str(was[1])[6:]}{list(was[0])}"
            for name, was, to in zip(self._all_names, self._sizes, now, strict=True)
            if was != to
        ]

    def memory(self) -> list[int]:
        """Where each tensor's values lie."""
        return [0 if t.is_meta or t.layout is not torch.strided else t.data_ptr() for t in self._all]

    def ids(self) -> list[int]:
        return [id(t) for t in self._tensors]

    def _sized(self) -> list[tuple[torch.Size, torch.dtype]]:
        return [(t.shape, t.dtype) for t in self._all]

    def wrote(self, tensors: Iterable[torch.Tensor]) -> None:
        """The step itself has just written to these, or taken what they hold. Whatever else moved is news still."""
        mine, held = plainly(lambda: ({_memory(t) for t in tensors}, [_memory(t) for t in self._all]))
        if self._unheard:
            plainly(self._unheard.written, mine)
        versions, _ = plainly(self._moving)
        self._versions = [
            now if place in mine else then
            for place, now, then in zip(held, versions, self._versions, strict=True)
        ]

    def _moving(self) -> tuple[list[int], list[bool]]:
        return [t._version for t in self._all], [t.requires_grad for t in self._tensors]

    @property
    def mode(self) -> tuple[bool, ...]:
        """The training flag of every part: train and eval are two programs."""
        try:
            return tuple(map(operator.getitem, self._attributes, repeat("training")))
        except KeyError:  # a compiled or a scripted module has it somewhere else
            return tuple([part.training for part in self.parts])

    def look(self) -> Changes | None:
        """What moved; None, and nothing but flat passes, where nothing did."""
        try:
            whole = (
                not any(self._empty)
                and plainly(self._equal)
                and list(map(len, self._counted)) == self._counts
                and self._places.same()
                and list(map(type, self.parts)) == self._kinds
            )
        except (KeyError, RuntimeError):  # RuntimeError: two tensors were asked whether they are equal
            whole = False
        versions, trained = plainly(self._moving)
        unheard = plainly(self._unheard.moved) if self._unheard else ()
        if whole and not unheard and versions == self._versions and trained == self._trained:
            return None
        written = tuple(
            name
            for name, now, then in zip(self._all_names, versions, self._versions, strict=True)
            if now != then or name in unheard
        )
        if not whole:
            return Changes(written, tuple(self._replaced()))
        what = (
            f"{name}.requires_grad is now {now}"
            for name, now, then in zip(self.names, trained, self._trained, strict=True)
            if now != then
        )
        return Changes(written, tuple(what))

    def _equal(self) -> bool:
        """One comparison in C, which asks an object for equality only where it is another one."""
        return self._compared == self._copies

    def _replaced(self) -> list[str]:
        found = [f"{key} was replaced" for table, key, tensor in self._rows if table.get(key) is not tensor]
        kinds = zip(self.parts, self._kinds, strict=True)
        found += [
            f"a {then.__name__} is a {type(part).__name__} now"
            for part, then in kinds
            if type(part) is not then
        ]
        return found or ["a part of the module was replaced, added or removed"]


def _memory(tensor: torch.Tensor) -> int:
    """One number for all tensors that share memory, and so may share a version counter."""
    strided = tensor.layout is torch.strided and not tensor.is_meta
    return (tensor.untyped_storage().data_ptr() if strided else 0) or id(tensor)


def _other_when_another(value: Any) -> bool:
    """Whether ``==`` never takes another object for this one: a module without an equality of its own; a tensor whose
    comparison has no one truth; nothing."""
    if isinstance(value, torch.Tensor):
        return plainly(value.numel) != 1
    return value is None or type(value).__eq__ is object.__eq__
