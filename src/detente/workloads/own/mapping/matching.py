"""Which module of one side is which of the other, by names; shapes only say which can be.

Modules of one stem (``layers.#.query``) are one family. Two families are one another's when each shares more words
with the other than with any family that it could be instead: more is a superset, never a count, so that no two hints
are weighed against each other. Within a family numbers count by rank. What is left when the rest is decided is taken
where it is alone on both sides. Everything else is the user's to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from detente.workloads.own.mapping.modules import Module
from detente.workloads.own.mapping.names import ModuleName, contradict
from detente.workloads.own.mapping.tensors import forms

Pair = tuple[Module, Module]
Family = list[Module]


def match(torch: Sequence[Module], jax: Sequence[Module], *, alike: bool = True) -> list[Pair]:
    """The pairs that names decide. ``alike``: only modules that have tensors of the same roles."""
    able = _able(torch, jax, alike)
    found = []
    for group in _components(torch, jax, able):
        found += _decided(*group, able)
    return found


def gathered(torch: Sequence[Module], jax: Sequence[Module]) -> list[Pair]:
    """Modules of one side that only together are one of the other: a head's bias that is kept beside its weight."""
    able = _able(torch, jax, alike=False)
    found = []
    for some, others in _components(torch, jax, able):
        one, parts = (some, others) if len(some) == 1 else (others, some)
        roles = [role for module in parts for role in module.parts]
        if len(one) == 1 and len(parts) > 1 and sorted(roles) == sorted(one[0].parts):
            found += [(one[0], part) if one is some else (part, one[0]) for part in parts]
    return found


def _able(torch: Sequence[Module], jax: Sequence[Module], alike: bool) -> dict[Module, list[Module]]:
    """The modules that each of torch's could be."""
    names = {module.name.stem: module.name for module in (*torch, *jax)}
    never = cache(lambda one, other: contradict(names[one], names[other]))
    sizes: dict[object, list[Module]] = {}
    for module in jax:
        sizes.setdefault(_sizes(module) if alike else None, []).append(module)
    return {
        one: [
            other
            for other in sizes.get(_sizes(one) if alike else None, [])
            if not never(one.name.stem, other.name.stem) and _fit(one, other)
        ]
        for one in torch
    }


def _sizes(module: Module) -> frozenset[tuple[str, int]]:
    return frozenset((role, math.prod(part.shape)) for role, part in module.parts.items())


def _fit(one: Module, other: Module) -> bool:
    roles = one.parts.keys() & other.parts.keys()
    # What a module has left does not go to a module that has its others already: a bias stays with its weight.
    apart = not (one.rest and other.rest)
    return bool(roles) and apart and all(forms(one.parts[role], other.parts[role]) for role in roles)


def _components(
    torch: Sequence[Module], jax: Sequence[Module], able: dict[Module, list[Module]]
) -> list[tuple[list[Module], list[Module]]]:
    """Modules that could be one another's, directly or through others."""
    back: dict[Module, list[Module]] = {module: [] for module in jax}
    for one, others in able.items():
        for other in others:
            back[other].append(one)
    seen: set[Module] = set()
    found = []
    for start in torch:
        if start in seen:
            continue
        group: tuple[list[Module], list[Module]] = ([], [])
        todo = [(start, 0)]
        seen.add(start)
        while todo:
            module, side = todo.pop()
            group[side].append(module)
            for neighbour in (back if side else able)[module]:
                if neighbour not in seen:
                    seen.add(neighbour)
                    todo.append((neighbour, 1 - side))
        found.append(group)
    return found


def _decided(torch: list[Module], jax: list[Module], able: dict[Module, list[Module]]) -> list[Pair]:
    ours, theirs = _families(torch), _families(jax)
    found: list[Pair] = []
    while ours and theirs:
        could = {
            (a, b): shared(ours[a][0].name, theirs[b][0].name)
            for a in ours
            for b in theirs
            if any(other in able[one] for one in ours[a] for other in theirs[b])
        }
        best = [pair for pair in could if _is_best(pair, could)]
        pairs = {(a, b): aligned(ours[a], theirs[b], lambda one, other: other in able[one]) for a, b in best}
        done = {pair: members for pair, members in pairs.items() if members}
        if not done:
            return found
        for (a, b), members in done.items():
            found += members
            del ours[a], theirs[b]
    return found


def _families(modules: list[Module]) -> dict[str, Family]:
    families: dict[str, Family] = {}
    for module in modules:
        families.setdefault(module.name.stem, []).append(module)
    return families


def shared(a: ModuleName, b: ModuleName) -> tuple[frozenset[str], ...]:
    """The words that two names have in common: those that say something, then all, then as they are written."""
    return a.words & b.words, a.meant & b.meant, a.raw & b.raw


def more(some: tuple[frozenset[str], ...], others: tuple[frozenset[str], ...]) -> bool:
    """More in common, by the first kind of words that differs; never when each has what the other lacks."""
    return next((one > other for one, other in zip(some, others, strict=True) if one != other), False)


def _is_best(pair: tuple[str, str], could: dict[tuple[str, str], tuple[frozenset[str], ...]]) -> bool:
    """Both share more with each other than with any other."""
    return all(
        more(could[pair], words)
        for other, words in could.items()
        if other != pair and (other[0] == pair[0] or other[1] == pair[1])
    )


def aligned(
    ours: Family, theirs: Family, able: Callable[[Module, Module], bool] = lambda one, other: True
) -> list[Pair]:
    """Members of two families by the rank of their numbers; nothing where the numbers are not the same lists."""
    by_rank, counted = _ranks(ours)
    other_by_rank, other_counted = _ranks(theirs)
    if by_rank.keys() != other_by_rank.keys() or len(ours) != len(by_rank) or len(theirs) != len(by_rank):
        return []
    # Heads of layers and layers of heads have the same ranks, each in its order.
    for one, other in zip(counted, other_counted, strict=True):
        if one != other and (one in other_counted or other in counted):
            return []
    pairs = [(by_rank[rank], other_by_rank[rank]) for rank in sorted(by_rank)]
    return pairs if all(able(*pair) for pair in pairs) else []


def _ranks(family: Family) -> tuple[dict[tuple[int, ...], Module], list[str]]:
    """Each member by its rank under every number that differs, and what these numbers count. A rank is one among those
    that agree in the numbers before it."""
    numbers = [module.name.numbers for module in family]
    vary = [i for i in range(len(numbers[0])) if len({n[i] for n in numbers}) > 1]
    kept = [tuple(n[i] for i in vary) for n in numbers]
    found = {}
    for module, key in zip(family, kept, strict=True):
        rank = tuple(
            sorted({other[i] for other in kept if other[:i] == key[:i]}).index(key[i])
            for i in range(len(key))
        )
        found[rank] = module
    return found, [family[0].name.slots[i].label for i in vary]


def disordered(pairs: Sequence[Pair]) -> set[Pair]:
    """Pairs whose numbers run against each other: one list goes to one list in its order, whatever the shapes say.

    Such are ``fc1`` and ``fc2`` that would go to ``Dense_1`` and ``Dense_0``, and a third layer of which one module
    would go to the third and another to the second.
    """
    lists: dict[tuple[str, str], list[tuple[int, int, Pair]]] = {}
    for pair in pairs:
        one, other = pair[0].name, pair[1].name
        for i, k in _same_slots(one, other):
            where = (_until(one, i), _until(other, k))
            lists.setdefault(where, []).append((one.numbers[i], other.numbers[k], pair))
    found = set()
    for members in lists.values():
        steps = sorted({(i, k) for i, k, _ in members})
        if any(a[0] == b[0] or a[1] >= b[1] for a, b in pairwise(steps)):
            found |= {pair for *_, pair in members}
    return found


def _same_slots(one: ModuleName, other: ModuleName) -> list[tuple[int, int]]:
    """The numbers of two names that count the same."""
    if len(one.slots) == len(other.slots):
        return [
            (i, i) for i, (a, b) in enumerate(zip(one.slots, other.slots, strict=True)) if a.final == b.final
        ]
    labels, others = [s.label for s in one.slots], [s.label for s in other.slots]
    return [
        (labels.index(label), others.index(label))
        for label in labels
        if label and labels.count(label) == others.count(label) == 1
    ]


def _until(name: ModuleName, slot: int) -> str:
    """The name up to a number, with the numbers before it."""
    texts = name.stem.split("#")[: slot + 1]
    return "".join(
        text + (str(number) if i < slot else "")
        for i, (text, number) in enumerate(zip(texts, name.numbers, strict=False))
    )
