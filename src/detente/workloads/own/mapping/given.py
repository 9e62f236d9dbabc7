"""The user's table: what they say of the map, in names of either side."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from detente.records.fault import UsageFault
from detente.workloads.own.mapping.modules import cut
from detente.workloads.own.mapping.names import read
from detente.workloads.own.mapping.tensors import Kind, Part, behind, forms, jax_kind, torch_kind
from detente.workloads.weights import LAYOUTS

# A name of torch's; or several, which lie side by side in one leaf, in this order along its outputs.
Given = str | tuple[str, ...]
# A path; one with the layout behind it; or several, which take the outputs of one torch tensor in this order.
Entry = str | tuple[str, str] | list[str]
Numbers = tuple[int, ...]
KindOf = Callable[[str], Kind | None]


@dataclass(frozen=True)
class Bound:
    """What a table says. ``pairs`` are tensors with the layout that it names; in a ``group`` the tensors of two modules
    are still to be told apart; ``torch`` and ``jax`` are what it does not name."""

    pairs: tuple[tuple[Part, Part, str | None], ...]
    groups: tuple[tuple[list[Part], list[Part], str | None], ...]
    torch: list[Part]
    jax: list[Part]


@dataclass(frozen=True)
class _Line:
    """One entry: names of both sides, one of them at most several."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    layout: str | None


def given(table: Mapping[Given, Entry], torch: Sequence[Part], jax: Sequence[Part]) -> Bound:
    """Read a table.

    ======================================  ====================================================================
    ``"fc.weight": "out.kernel"``           a tensor and a leaf
    ``"encoder.q": "attention.query"``      two modules: what lies under both is mapped by its names
    ``"h.*.ln_1": "layers.*.norm_a"``       the same in every layer, by the rank of the numbers
    ``"q.weight": ("q.w", "transposed")``   a leaf and the layout behind it, a key of LAYOUTS
    ``"qkv": ["query", "key", "value"]``    one torch module divided along its outputs
    ``("q", "k", "v"): "qkv"``              several side by side in one leaf
    ======================================  ====================================================================

    A longer name goes before a shorter one that it is under. Raises UsageFault for a name that there is not, one named
    twice, an unknown layout, and shapes that cannot be what the table says.
    """
    lines = [_line(key, value) for key, value in table.items()]
    ours = _named(torch, [(i, name) for i, line in enumerate(lines) for name in line.keys], "torch tensor")
    theirs = _named(jax, [(i, name) for i, line in enumerate(lines) for name in line.values], "JAX leaf")
    pairs, groups = [], []
    for i, line in enumerate(lines):
        some = [ours[i, name] for name in line.keys]
        others = [theirs[i, name] for name in line.values]
        for one, other in _in_order(line, some, others):
            if len(line.keys) == len(line.values) == 1:
                if all(len(parts) == 1 and not parts[0].name for parts in (one[0], other[0])):
                    pairs.append((one[0][0], other[0][0], line.layout))
                else:
                    groups.append((_with_names(one[0]), _with_names(other[0]), line.layout))
            elif len(line.keys) == 1:
                pairs += [(a, b, line.layout) for a, b in _divided(one[0], other, torch_kind)]
            else:
                pairs += [(a, b, line.layout) for b, a in _divided(other[0], one, jax_kind)]
    for pair in pairs:
        _must_fit(*pair)
    named = [{part.tensor.name for found in side.values() for parts in found.values() for part in parts}
             for side in (ours, theirs)]  # fmt: skip
    left = [[part for part in side if part.tensor.name not in known]
            for side, known in zip((torch, jax), named, strict=True)]  # fmt: skip
    return Bound(tuple(pairs), tuple(groups), *left)


def _line(key: Given, value: Entry) -> _Line:
    keys = (key,) if isinstance(key, str) else tuple(key)
    layout = None
    if isinstance(value, tuple):
        if len(value) != 2 or value[1] not in LAYOUTS:
            raise UsageFault(
                f"the table of weights gives {key!r} {value!r}",
                f"a pair is (path, layout), and the layouts are {', '.join(LAYOUTS)}",
            )
        value, layout = value
    values = (value,) if isinstance(value, str) else tuple(value)
    if not keys or not values or (len(keys) > 1 and len(values) > 1):
        raise UsageFault(
            f"the table of weights gives {key!r} {value!r}",
            "one side of an entry is one name, the other may be several",
        )
    return _Line(keys, values, layout)


def _named(
    parts: Sequence[Part], wanted: Sequence[tuple[int, str]], what: str
) -> dict[tuple[int, str], dict[Numbers, list[Part]]]:
    """For each name of each entry the parts that are it or lie under it, by the numbers at its stars, under what is
    left of their names. A part belongs to the longest name."""
    found: dict[tuple[int, str], dict[Numbers, list[Part]]] = {key: {} for key in wanted}
    matched: set[tuple[int, str]] = set()
    compiled = {
        key: re.compile(re.escape(key[1]).replace(r"\*", r"(\d+)") + r"(?:\.(?P<rest>.*))?") for key in wanted
    }
    for part in parts:
        hits = [(key, m) for key, pattern in compiled.items() if (m := pattern.fullmatch(part.tensor.name))]
        matched |= {key for key, _ in hits}
        if not hits:
            continue
        first = max(_length(key[1]) for key, _ in hits)
        nearest = [(key, m) for key, m in hits if _length(key[1]) == first]
        if len(nearest) > 1:
            raise UsageFault(
                f"the table of weights names the {what} {part.tensor.name!r} twice",
                "give every tensor and every leaf one entry",
            )
        key, m = nearest[0]
        rest = m["rest"] or ""
        numbers = tuple(int(n) for n in m.groups()[:-1])
        found[key].setdefault(numbers, []).append(replace(part, name=rest))
    for key in wanted:
        if key not in matched:
            known = {
                ".".join(p[:i])
                for part in parts
                for p in [part.tensor.name.split(".")]
                for i in range(1, len(p) + 1)
            }
            near = difflib.get_close_matches(key[1], sorted(known), n=3, cutoff=0.4)
            some = (
                f"the nearest are {', '.join(map(repr, near))}" if near else f"there are {len(parts)} of them"
            )
            raise UsageFault(
                f"the table of weights names {key[1]!r}, and no {what} and no module is called so", some
            )
        if not found[key]:
            raise UsageFault(
                f"all that the table of weights names by {key[1]!r} has entries of its own",
                "take this entry out",
            )
    return found


def _length(name: str) -> tuple[int, int]:
    return name.count("."), -name.count("*")


def _in_order(
    line: _Line, ours: list[dict[Numbers, list[Part]]], theirs: list[dict[Numbers, list[Part]]]
) -> list[tuple[list[list[Part]], list[list[Part]]]]:
    """What the names of an entry stand for, one layer after the other."""
    ranked = [_ranked(found) for found in (*ours, *theirs)]
    for name, found in zip((*line.keys, *line.values), ranked, strict=True):
        if found.keys() != ranked[0].keys():
            raise UsageFault(
                f"the table of weights pairs {line.keys[0]!r}, of which there are {len(ranked[0])}, with {name!r}, of "
                f"which there are {len(found)}",
                "give both as many stars, and write out the layers that only one has",
            )
    return [
        ([found[rank] for found in ranked[: len(ours)]], [found[rank] for found in ranked[len(ours) :]])
        for rank in sorted(ranked[0])
    ]


def _ranked(found: dict[Numbers, list[Part]]) -> dict[Numbers, list[Part]]:
    """By the rank of each number that differs: the 0 of every ``MultiHeadDotProductAttention_0`` counts nothing."""
    vary = [i for i in range(len(next(iter(found)))) if len({key[i] for key in found}) > 1]
    kept = {tuple(key[i] for i in vary): parts for key, parts in found.items()}
    return {
        tuple(sorted({k[i] for k in kept if k[:i] == key[:i]}).index(key[i]) for i in range(len(key))): parts
        for key, parts in kept.items()
    }


def _with_names(parts: Iterable[Part]) -> list[Part]:
    return [replace(part, name=part.name or part.tensor.name.rpartition(".")[2]) for part in parts]


def _divided(wholes: list[Part], sides: list[list[Part]], kind_of: KindOf) -> list[tuple[Part, Part]]:
    """Each whole tensor cut along its outputs, as long as what each of ``sides`` has for its role."""
    by_role = [
        {read(part.name, part.tensor.trained)[0]: part for part in _with_names(side)} for side in sides
    ]
    found = []
    for whole in _with_names(wholes):
        role = read(whole.name, whole.tensor.trained)[0]
        pieces = [side[role] for side in by_role if role in side]
        axis = _outputs(whole, kind_of(whole.tensor.owner))
        if axis is None or len(pieces) < len(sides):
            raise UsageFault(
                f"the table of weights divides {whole.tensor.name!r} {whole.shape}, and "
                + (
                    f"{len(pieces)} of {len(sides)} have a {role}"
                    if axis is not None
                    else "its class is unknown"
                ),
                "a matrix of a linear layer, or its bias, can be divided along its outputs",
            )
        each, start = math.prod(whole.shape) // whole.shape[axis], 0
        for piece in pieces:
            stop = start + math.prod(piece.shape) // each
            found.append((cut(whole, axis, start, stop), piece))
            start = stop
        if start != whole.shape[axis]:
            raise UsageFault(
                f"the table of weights divides {whole.tensor.name!r} {whole.shape} into "
                f"{', '.join(str(piece.shape) for piece in pieces)}",
                "the parts must be as long as the whole",
            )
    return found


def _outputs(part: Part, kind: Kind | None) -> int | None:
    """The axis of a tensor's outputs; None where it is not known."""
    if len(part.shape) < 2:
        return 0
    if kind is None or kind.name != "linear" or len(part.shape) > 2:
        return None
    return 0 if kind.outward else 1


def _must_fit(torch: Part, jax: Part, layout: str | None) -> None:
    told = f"{torch.tensor.name!r} {torch.shape} and {jax.tensor.name!r} {jax.shape}"
    if torch.tensor.trained != jax.tensor.trained:
        raise UsageFault(
            f"the table of weights pairs {told}, of which one is trained and the other is not",
            "pair like with like",
        )
    if behind(torch, jax, layout) is None if layout is not None else not forms(torch, jax):
        how = f"in the layout {layout!r}" if layout else "in any layout that their classes allow"
        raise UsageFault(
            f"the table of weights pairs {told}, which do not fit {how}",
            f'check the sizes; ("{jax.tensor.name}", LAYOUT) names another, of {", ".join(LAYOUTS)}',
        )
