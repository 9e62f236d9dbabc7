"""Which operations of two parts are the same, and which are one side's own.

First both are made alike: what only moves data (reshapes, transposes, copies, broadcasts) is set aside and looked
through, and a batch norm, in which torch_xla writes a LayerNorm, stands for the primitives that it is. Then operations
are matched whose neighbourhood is the same (Weisfeiler-Lehman: a label is an opcode and a dtype, refined by the labels
that feed it; operands of commutative operations sorted), and of the rest those of the same opcode and dtype. Dice's
coefficient of the second says how alike two parts are.

Sources: B. Weisfeiler, A. Lehman, 1968; N. Shervashidze et al., Weisfeiler-Lehman Graph Kernels, JMLR 2011; L. Dice,
Measures of the Amount of Ecologic Association Between Species, 1945.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from detente.programs.parts import MOVES, Site

_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
# What a batch norm is made of, per operation (mean and variance, or their gradients, over one axis).
_NORMS = {
    "batch-norm-training": (
        "reduce",
        "divide",
        "subtract",
        "multiply",
        "reduce",
        "divide",
        "add",
        "rsqrt",
        "multiply",
        "multiply",
        "add",
    ),
    "batch-norm-inference": ("subtract", "add", "rsqrt", "multiply", "multiply", "add"),
    "batch-norm-grad": (
        "subtract",
        "multiply",
        "reduce",
        "reduce",
        "multiply",
        "multiply",
        "subtract",
        "subtract",
        "multiply",
        "divide",
    ),
}
_ROUNDS = 3


@dataclass(frozen=True)
class Matched:
    """``same``: pairs of (position in A, in B) whose neighbourhoods agree; ``alike``: whose opcode and dtype do;
    ``only_a``, ``only_b``: positions of what is left; moves are in none of them."""

    same: tuple[tuple[int, int], ...]
    alike: tuple[tuple[int, int], ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    dice: float


def match(a: Sequence[Site], b: Sequence[Site]) -> Matched:
    """The operations of two parts, matched."""
    labels_a, labels_b = _labels(a), _labels(b)
    kept_a, kept_b = sorted(labels_a), sorted(labels_b)
    same = _paired(kept_a, kept_b, [labels_a[k][-1] for k in kept_a], [labels_b[k][-1] for k in kept_b])
    paired_a, paired_b = {x for x, _ in same}, {y for _, y in same}
    rest_a = [k for k in kept_a if k not in paired_a]
    rest_b = [k for k in kept_b if k not in paired_b]
    alike = _paired(rest_a, rest_b, [labels_a[k][0] for k in rest_a], [labels_b[k][0] for k in rest_b])
    bag_a, bag_b = _bag(a), _bag(b)
    both, whole = sum((bag_a & bag_b).values()), sum(bag_a.values()) + sum(bag_b.values())
    taken_a, taken_b = {x for x, _ in alike}, {y for _, y in alike}
    return Matched(
        tuple(same),
        tuple(alike),
        tuple(k for k in rest_a if k not in taken_a),
        tuple(k for k in rest_b if k not in taken_b),
        2 * both / whole if whole else 1.0,
    )


def opened(opcode: str) -> tuple[str, ...]:
    """The primitives that an operation stands for: itself, or those of a norm."""
    return _NORMS.get(opcode, (opcode,))


def _bag(sites: Iterable[Site]) -> Counter[str]:
    """Opcodes with their dtypes, norms opened, moves left out."""
    found: Counter[str] = Counter()
    for site in sites:
        one = site.operation
        for opcode in opened(one.opcode):
            if opcode not in MOVES:
                found[f"{opcode} {one.shape.dtype}"] += 1
    return found


def _labels(sites: Sequence[Site]) -> dict[int, list[int]]:
    """Position -> its labels, one per round; moves have none."""
    at = {(site.home.name, id(site.operation)): k for k, site in enumerate(sites)}
    feeds: dict[int, list[int | str]] = {}
    for k, site in enumerate(sites):
        feeds[k] = [_source(site, operand, at, sites) for operand in site.operation.operands]
    labels = {
        k: [hash((site.operation.opcode, site.operation.shape.dtype))]
        for k, site in enumerate(sites)
        if site.operation.opcode not in MOVES
    }
    for _ in range(_ROUNDS):
        new = {}
        for k, known in labels.items():
            fed = [labels[f][-1] if isinstance(f, int) and f in labels else hash(f) for f in feeds[k]]
            if sites[k].operation.opcode in _COMMUTATIVE:
                fed.sort()
            new[k] = hash((known[-1], tuple(fed)))
        for k, label in new.items():
            labels[k].append(label)
    return labels


def _source(site: Site, operand: int, at: dict[tuple[str, int], int], sites: Sequence[Site]) -> int | str:
    """The operation of the part that an operand comes from, moves looked through; of what comes from outside, its
    dtype."""
    home = site.home
    for _ in range(len(home.instructions)):
        one = home.instructions[operand]
        if one.opcode not in MOVES or not one.operands:
            break
        operand = one.operands[0]
    one = home.instructions[operand]
    position = at.get((home.name, id(one)))
    return position if position is not None and position < len(sites) else f"outside {one.shape.dtype}"


def _paired(
    a: Sequence[int], b: Sequence[int], of_a: Sequence[int], of_b: Sequence[int]
) -> list[tuple[int, int]]:
    """Positions with equal labels, in order."""
    waiting: dict[int, list[int]] = defaultdict(list)
    for k, label in zip(b, of_b, strict=True):
        waiting[label].append(k)
    found = []
    for k, label in zip(a, of_a, strict=True):
        if waiting[label]:
            found.append((k, waiting[label].pop(0)))
    return found
