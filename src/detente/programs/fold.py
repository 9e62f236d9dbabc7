"""Equal layers as one: of twelve blocks that hold the same operations one is shown, and a block that differs is
seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from detente.programs.parts import Facts, Part

# The end of a component that is a number (``3`` of ``h.3.attn``) or ends in one (``h_3``, ``layer3``).
_NUMBER = re.compile(r"\d+$")


@dataclass(frozen=True)
class Folded:
    """``members`` are parts that hold the same; ``path`` is theirs, with a star where they differ. ``facts`` are of one
    of them."""

    path: str
    direction: str
    members: tuple[Part, ...]
    facts: Facts

    @property
    def times(self) -> int:
        return len(self.members)


def fold(table: Mapping[Part, Facts]) -> tuple[Folded, ...]:
    """Parts whose paths differ in numbers alone, and which hold the same operations, as one each; in the table's order.

    Two blocks of twelve that differ from the other ten stand beside them, under their own numbers where it is one.
    """
    star = starred(part.path for part in table)
    groups: dict[tuple[str, str, tuple[object, ...]], list[Part]] = {}
    for part, facts in table.items():
        key = (star(part.path), part.direction, _signature(facts))
        groups.setdefault(key, []).append(part)
    return tuple(
        Folded(pattern if len(members) > 1 else members[0].path, direction, tuple(members), table[members[0]])
        for (pattern, direction, _), members in groups.items()
    )


def starred(paths: Iterable[str]) -> Callable[[str], str]:
    """What puts a star for the number of each layer of these paths.

    >>> starred(["h.0.ln_1", "h.1.ln_1"])("h.1.ln_1")
    'h.*.ln_1'
    """
    holders = {holder for path in paths for holder in _holders(path)}
    return lambda path: _pattern(path, holders)


def _holders(path: str) -> list[str]:
    """What a path lies in: every beginning of it."""
    names = path.split(".")
    return [".".join(names[:k]) for k in range(1, len(names))]


def _pattern(path: str, holders: set[str]) -> str:
    """The path with a star for the number of each layer. A name that ends in a number is a layer's where it holds
    something: ``h_3`` of Flax does, ``ln_1`` and ``ln_2`` of one layer do not."""
    names = path.split(".")
    starred = [
        _NUMBER.sub("*", name) if name.isdigit() or ".".join(names[: k + 1]) in holders else name
        for k, name in enumerate(names)
    ]
    return ".".join(starred)


def _signature(facts: Facts) -> tuple[object, ...]:
    return facts.flops, tuple(sorted((facts.own or facts.opcodes).items()))
