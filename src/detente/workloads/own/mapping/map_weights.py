"""The map between the weights of a user's torch model and of the same model written in JAX, found by names and shapes.

A wrong map is worse than none: the runs would differ, or be equal for a reason nobody meant. So what names do not
decide is asked for, with a table to fill in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from detente.records.fault import UsageFault
from detente.workloads.own.mapping.given import Entry, Given, given
from detente.workloads.own.mapping.matching import disordered, gathered, match, more, shared
from detente.workloads.own.mapping.modules import Module, divided, modules, single
from detente.workloads.own.mapping.names import ModuleName, contradict, in_order
from detente.workloads.own.mapping.stacked import unstacked
from detente.workloads.own.mapping.tensors import Laying, Part, Tensor, behind, forms
from detente.workloads.own.mapping.undecided import Open, Undecided, fault
from detente.workloads.weights import WeightRule

__all__ = ["Tensor", "map_weights"]

Pair = tuple[Part, Part]
# A tensor with its role and the name of its module.
Single = tuple[ModuleName, str, Part]


def map_weights(
    torch: Sequence[Tensor], jax: Sequence[Tensor], table: Mapping[Given, Entry] | None = None
) -> tuple[WeightRule, ...]:
    """A rule for every torch tensor, so that each is covered and each JAX leaf filled exactly.

    ``table`` binds what it names (see ``given.given``): tensors or modules by their full names, ``*`` for the number of
    a layer, ``("path", "transposed")`` for a layout; the rest is found. Tied weights stand once on either side, and
    counts (``num_batches_tracked``) on neither.

    Raises UsageFault naming what is undecided and what has no counterpart, with their shapes and the table to fill in;
    and for a table that names what there is not, or one leaf twice.

    >>> torch = [Tensor("fc1.weight", (8, 4), "Linear"), Tensor("fc1.bias", (8,), "Linear"),
    ...          Tensor("fc2.weight", (2, 8), "Linear"), Tensor("fc2.bias", (2,), "Linear")]
    >>> jax = [Tensor("Dense_0.kernel", (4, 8), "linen.Dense"), Tensor("Dense_0.bias", (8,), "linen.Dense"),
    ...        Tensor("Dense_1.kernel", (8, 2), "linen.Dense"), Tensor("Dense_1.bias", (2,), "linen.Dense")]
    >>> for rule in map_weights(torch, jax):
    ...     print(rule.name, rule.path, rule.layout)
    fc1.bias ('Dense_0', 'bias') same
    fc1.weight ('Dense_0', 'kernel') transposed
    fc2.bias ('Dense_1', 'bias') same
    fc2.weight ('Dense_1', 'kernel') transposed

    Layers that JAX keeps in one stack (``nnx.scan``) are named as if each were a layer of its own: ``layers.*.scale``.
    """
    try:
        return _mapped(torch, jax, table)
    except UsageFault:
        apart = unstacked(torch, jax)
        if apart is None:
            raise
        return apart.rules(_mapped(torch, apart.tensors, table))


def _mapped(
    torch: Sequence[Tensor], jax: Sequence[Tensor], table: Mapping[Given, Entry] | None
) -> tuple[WeightRule, ...]:
    ours, theirs = _whole(torch), _whole(jax)
    bound = given(table or {}, ours, theirs)
    pairs: list[tuple[Part, Part, str | None]] = list(bound.pairs)
    left: list[Single] = []
    leaves: list[Single] = []
    for some, others, layout in (*bound.groups, (bound.torch, bound.jax, None)):
        found, *rest = _found(some, others)
        # A table's layout is that of a module's matrix.
        pairs += [(one, other, layout if len(one.shape) > 1 else None) for one, other in found]
        left += rest[0]
        leaves += rest[1]
    rules, open_layouts = [], []
    for one, other, layout in pairs:
        ways = forms(one, other) if layout is None else (behind(one, other, layout),)
        if len(ways) == 1 and ways[0] is not None:
            rules.append(_rule(one, other, ways[0]))
        else:
            open_layouts.append(Open(one, (other,), tuple(way.layout for way in ways if way)))
    if left or leaves or open_layouts:
        raise fault(_undecided(left, leaves, open_layouts))
    return tuple(sorted(rules, key=lambda rule: (rule.name, rule.piece.start if rule.piece else 0)))


def _whole(tensors: Iterable[Tensor]) -> list[Part]:
    # By name, so that nothing hangs on the order in which they were listed.
    return [Part(t, t.name, t.shape) for t in sorted(tensors, key=lambda t: t.name)]


def _found(torch: Sequence[Part], jax: Sequence[Part]) -> tuple[list[Pair], list[Single], list[Single]]:
    """The pairs, and what is left of either side."""
    theirs = modules(jax)
    ours = divided(modules(torch), theirs)
    whole = match(ours, theirs)
    # Modules of which one has what the other lacks: to say which tensor it is that is missing.
    taken = {module for pair in whole for module in pair}
    ours_left, theirs_left = ([m for m in side if m not in taken] for side in (ours, theirs))
    partly = match(ours_left, theirs_left, alike=False)
    # A tensor that one side keeps in the module and the other beside it.
    taken |= {module for pair in partly for module in pair}
    split = gathered(*([m for m in side if m not in taken] for side in (ours_left, theirs_left)))
    some, others = (_rest(side, [*partly, *split], k) for k, side in enumerate((ours_left, theirs_left)))
    beside = [pair for pair in match(some, others) if pair[0].rest != pair[1].rest]
    every = (*whole, *partly, *split, *beside)
    crossed = disordered(every)
    pairs = [
        (one.parts[role], other.parts[role])
        for one, other in every
        for role in one.parts
        if role in other.parts and (one, other) not in crossed
    ]
    done = {id(part) for pair in pairs for part in pair}
    rest, rest_leaves = (
        [(m.name, role, part) for m in side for role, part in m.parts.items() if id(part) not in done]
        for side in (ours, theirs)
    )
    return pairs, rest, rest_leaves


def _rest(side: Sequence[Module], pairs: Sequence[tuple[Module, Module]], k: int) -> list[Module]:
    """What modules have that their partners have not, and those of one tensor that have no partner."""
    found = []
    for module in side:
        partners = [pair[1 - k] for pair in pairs if pair[k] is module]
        gone = {role for partner in partners for role in partner.parts}
        left = {role: part for role, part in module.parts.items() if role not in gone}
        if partners or len(left) == 1:
            found += single(((module.path, role, part) for role, part in left.items()), bool(partners))
    return found


def _rule(torch: Part, jax: Part, form: Laying) -> WeightRule:
    path = tuple(jax.tensor.name.split("."))
    return WeightRule(
        torch.tensor.name, path, form.layout, None, torch.piece, reshape=form.reshape, into=jax.piece
    )


def _undecided(torch: list[Single], jax: list[Single], layouts: list[Open]) -> Undecided:
    several, without = [], []
    leaves = sorted(jax, key=_in_order)
    names = {name.stem: name for name, _, _ in (*torch, *jax)}

    @cache
    def alike(ours: str, theirs: str) -> tuple[frozenset[str], ...] | None:
        one, other = names[ours], names[theirs]
        return None if contradict(one, other) else shared(one, other)

    for name, role, part in sorted(torch, key=_in_order):
        could = [
            (words, leaf)
            for other, its, leaf in leaves
            if its == role and forms(part, leaf) and (words := alike(name.stem, other.stem)) is not None
        ]
        kinds = {words for words, _ in could}
        # Those whose names have less in common with it than another's are no question.
        near = tuple(leaf for words, leaf in could if not any(more(others, words) for others in kinds))
        if near:
            several.append(Open(part, near))
        else:
            without.append(part)
    wanted = {id(leaf) for each in several for leaf in each.could}
    unfilled = tuple(leaf for _, _, leaf in leaves if id(leaf) not in wanted)
    return Undecided((*several, *layouts), tuple(without), unfilled, _lengths(several, torch, jax))


def _lengths(several: list[Open], torch: list[Single], jax: list[Single]) -> tuple[str, ...]:
    """Lists that would be one another's if one had not more members (a model with a layer less)."""
    stem = {id(part): f"{name.stem}, {role}" for name, role, part in (*torch, *jax)}
    members = Counter(stem.values())
    asked: dict[str, set[str]] = {}
    for each in several:
        asked.setdefault(stem[id(each.torch)], set()).update(stem[id(leaf)] for leaf in each.could)
    return tuple(
        f"{ours}: {members[ours]} in torch, and {theirs}: {members[theirs]} in JAX"
        for ours, (theirs, *others) in ((ours, sorted(found)) for ours, found in asked.items())
        if not others and members[ours] != members[theirs] and max(members[ours], members[theirs]) > 1
    )


def _in_order(single: Single) -> list[tuple[bool, int, str]]:
    return in_order(single[2].tensor.name)
