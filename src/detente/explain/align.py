"""Parts of two programs of one model, laid side by side.

What a model's modules are called differs (``h.3.ln_1``, ``transformer.h.3.ln_1``, ``layers.3.layernorm_before``), but
the parameters are the same ones, under the same canonical names: a module is known by the parameters below it. A part
without any of its own (an activation) goes to the nearest module above it that both sides have. Layers (fold.py says
which they are) are taken together: ``transformer.h.*.ln_1`` is all of them, unrolled on one side and in a loop on the
other.

Where that is not what a reader wants, ``align.toml`` says so: ``[[match]]`` with ``a`` and ``b``, paths with stars.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from detente.programs.fold import is_called, starred
from detente.programs.parts import Part
from detente.programs.scope import ROOT
from detente.records.fault import UsageFault

Anchors = Mapping[str, str]
_Set = frozenset[str]


@dataclass(frozen=True)
class Aligned:
    """Parts that are the same on both sides. ``path``: the canonical module's; ``named``: by hand."""

    path: str
    direction: str
    a: tuple[Part, ...]
    b: tuple[Part, ...]
    named: bool = False


@dataclass(frozen=True)
class Match:
    """What a reader says belongs together: paths with stars, one of either side."""

    a: str
    b: str


def align(
    a: Iterable[Part],
    b: Iterable[Part],
    anchors_a: Anchors,
    anchors_b: Anchors,
    by_hand: Iterable[Match] = (),
) -> tuple[Aligned, ...]:
    """The parts of both, in A's order and then what B alone has. ``anchors``: canonical parameter -> the module of that
    side which holds it."""
    parts_a, parts_b = tuple(a), tuple(b)
    side_a, side_b = _Side(parts_a, anchors_a), _Side(parts_b, anchors_b)
    common = side_a.sets() & side_b.sets()
    matches = tuple(by_hand)
    hand_a, hand_b = ([(m.a, m) for m in matches], [(m.b, m) for m in matches])
    found: dict[tuple[str, str, bool], tuple[list[Part], list[Part]]] = {}
    for side, parts, hand, which in ((side_a, parts_a, hand_a, 0), (side_b, parts_b, hand_b, 1)):
        for part in parts:
            match = next((m for pattern, m in hand if is_called(part.path, pattern)), None)
            path = match.b if match is not None else side.label(side.key(part.path, common))
            key = path if part.direction != "optimizer" else ""
            kept = found.setdefault((key, part.direction, match is not None), ([], []))
            kept[which].append(part)
    return tuple(
        Aligned(path, direction, tuple(mine), tuple(theirs), named)
        for (path, direction, named), (mine, theirs) in found.items()
    )


def unmatched(a: Iterable[Part], b: Iterable[Part], by_hand: Iterable[Match]) -> tuple[tuple[str, str], ...]:
    """(``a`` or ``b``, path) of every match that no part of that side is called: a misspelt one changes nothing."""
    there = {"a": {part.path for part in a}, "b": {part.path for part in b}}
    wanted = [(side, path) for match in by_hand for side, path in (("a", match.a), ("b", match.b))]
    return tuple(
        (side, pattern)
        for side, pattern in dict.fromkeys(wanted)
        if not any(is_called(path, pattern) for path in there[side])
    )


def read_matches(file: Path) -> tuple[Match, ...]:
    """The matches of an ``align.toml``. Raises UsageFault for one that cannot be read, saying which line is wrong."""
    hint = 'it holds tables [[match]] with a = "h.*.mlp" and b = "transformer.h.*.mlp.act"'
    try:
        document = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageFault(f"{file} cannot be read: {error}", hint) from None
    found = []
    tables = document.get("match", [])
    if not isinstance(tables, list):
        raise UsageFault(f"{file}: match is {tables!r}", hint)
    for k, row in enumerate(tables, 1):
        if (
            not isinstance(row, dict)
            or set(row) != {"a", "b"}
            or not all(isinstance(v, str) for v in row.values())
        ):
            raise UsageFault(f"{file}: match {k} has {row!r}", hint)
        if any(one.a == row["a"] for one in found):
            raise UsageFault(f"{file}: {row['a']!r} is matched twice", "name each part of A once")
        found.append(Match(row["a"], row["b"]))
    return tuple(found)


class _Side:
    """One program: the parameters below each of its modules, by their canonical names with stars for layers."""

    def __init__(self, parts: Iterable[Part], anchors: Anchors) -> None:
        canonical = starred(name.rpartition(".")[0] for name in anchors)
        held: dict[str, set[str]] = {}
        for name, path in anchors.items():
            module, _, leaf = name.rpartition(".")
            for above in _above(path):
                held.setdefault(above, set()).add(f"{canonical(module)}.{leaf}")
        self._held = {path: frozenset(names) for path, names in held.items()}
        self._paths = {part.path for part in parts}

    def sets(self) -> set[_Set]:
        """The parameters below each module that there is."""
        mine = (self._set(above) for path in self._paths for above in _above(path))
        return {*self._held.values(), *mine}

    def key(self, path: str, common: set[_Set]) -> _Set:
        """The parameters of the nearest module above a path that both sides have."""
        for above in _above(path):
            held = self._set(above)
            if held and held in common:
                return held
        return self._set("")

    def label(self, names: _Set) -> str:
        """The module that holds these parameters, by their names: what all of them begin with."""
        if names == self._set(""):
            return ROOT
        split = [name.split(".")[:-1] for name in sorted(names)]
        shared = []
        for column in zip(*split, strict=False):
            if len(set(column)) > 1:
                break
            shared.append(column[0])
        return ".".join(shared) or ROOT

    def _set(self, path: str) -> _Set:
        if path not in self._held and "*" in path:
            # Layers that a program has rolled up itself: what any of them holds.
            layers = re.compile(re.escape(path).replace(r"\*", "[^.]+"))
            found = [names for at, names in self._held.items() if layers.fullmatch(at)]
            self._held[path] = frozenset[str]().union(*found)
        return self._held.get(path, frozenset())


def _above(path: str) -> list[str]:
    """A path and everything that it lies in, the model itself last."""
    names = [] if path == ROOT else path.split(".") if path else []
    return [".".join(names[:k]) for k in range(len(names), 0, -1)] + [""]
