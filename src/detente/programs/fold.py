"""Equal layers as one: of twelve blocks that hold the same operations one is shown, and a block that differs is
seen.

Two names that end in a number are layers of one another where they hold the same modules: ``h.0`` and ``h.1``, each
with its ``attn`` and ``mlp``. What holds no module is no layer: the LayerNorm and the Linear of a ``Sequential`` are
called ``0`` and ``1``, and are two things.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from detente.programs.parts import Facts, Part

# The end of a component that is a number (``3`` of ``h.3.attn``) or ends in one (``h_3``, ``layer3``); a star stands
# for the numbers of layers that a program has rolled up itself.
_NUMBER = re.compile(r"(?:\d+|\*)$")


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
    """Parts whose paths differ in the numbers of layers alone, and which hold the same operations on arrays of the same
    shapes, as one each; in the table's order. What constants they hold is not compared.

    Two blocks of twelve that differ from the other ten stand beside them, under their own numbers where it is one.
    """
    star = starred(part.path for part in table)
    groups: dict[tuple[str, str, tuple[object, ...]], list[Part]] = {}
    for part, facts in table.items():
        key = (star(part.path), part.direction, _signature(facts))
        groups.setdefault(key, []).append(part)
    return tuple(
        Folded(_common(pattern, [m.path for m in members]), direction, tuple(members), table[members[0]])
        for (pattern, direction, _), members in groups.items()
    )


def starred(paths: Iterable[str]) -> Callable[[str], str]:
    """What puts a star for the number of each layer of these paths.

    >>> name = starred(["h.0.ln_1", "h.1.ln_1", "head.0", "head.1"])
    >>> name("h.1.ln_1"), name("head.1")
    ('h.*.ln_1', 'head.1')
    """
    # (what it lies in, name) -> its own number; the model is 0, and what lies in something comes behind it.
    nodes: dict[tuple[int, str], int] = {}
    for path in paths:
        at = 0
        for name in path.split("."):
            at = nodes.setdefault((at, name), len(nodes) + 1)
    inside: dict[int, list[tuple[str, int]]] = {}
    for (above, name), node in nodes.items():
        inside.setdefault(above, []).append((name, node))
    called: dict[int, str] = {}
    # What is held, by name -> a number for it: the same number is the same modules, all the way down.
    kinds: dict[frozenset[tuple[str, int]], int] = {}
    kind: dict[int, int] = {}
    for node in range(len(nodes), -1, -1):
        found = inside.get(node, [])
        layers = [(name, below) for name, below in found if below in inside and _NUMBER.search(name)]
        alike = Counter((_NUMBER.sub("*", name), kind[below]) for name, below in layers)
        for name, below in layers:
            star = _NUMBER.sub("*", name)
            if alike[star, kind[below]] > 1:
                called[below] = star
        held = frozenset((called.get(below, name), kind[below]) for name, below in found)
        kind[node] = kinds.setdefault(held, len(kinds))

    def star_of(path: str) -> str:
        at: int | None = 0
        names = []
        for name in path.split("."):
            at = nodes.get((at, name)) if at is not None else None
            names.append(called.get(at, name) if at is not None else name)
        return ".".join(names)

    return star_of


def is_called(path: str, pattern: str) -> bool:
    """Whether a reader who writes a pattern, with stars for numbers, means this path.

    >>> is_called("h.3.attn", "h.*.attn"), is_called("h.3.attn", "h.3.attn"), is_called("h.3.attn", "h.*")
    (True, True, False)
    """
    number = re.escape(pattern).replace(r"\*", r"(?:\d+|\*)")
    return path == pattern or re.fullmatch(number, path) is not None


def _common(pattern: str, members: list[str]) -> str:
    """The pattern with the names that all members share: a star is where they differ."""
    columns = zip(pattern.split("."), *(m.split(".") for m in members), strict=True)
    return ".".join(names[0] if len(set(names)) == 1 else star for star, *names in columns)


def _signature(facts: Facts) -> tuple[object, ...]:
    """What equal layers have in common. What is known by name is compared, whoever of them a shared constant is counted
    with; of what nothing is known by name, all of it."""
    if facts.own:
        return facts.flops, frozenset(facts.own.items())
    return facts.flops, facts.bytes, frozenset(facts.opcodes.items())
