"""Which operations of two parts are the same, which only resemble one another, and what is one side's own.

First both are made alike: what only moves data (reshapes, transposes, copies, broadcasts) is set aside, with what it
does to the order of the elements kept (views.py), and a batch norm, in which torch_xla writes a LayerNorm, stands for
the primitives that it is. Then operations are matched (labels.py), the closest first:

- **same**: equal opcode, dtype, size, axes and settings, and an equal neighbourhood;
- **displaced**: the same operation, fed by others;
- **alike**: equal opcode and dtype alone: of another size, over another axis, with another constant or setting.

Dice's coefficient of opcodes and dtypes says how alike two parts are, and the share of *same* operations stands apart.

Source: L. Dice, Measures of the Amount of Ecologic Association Between Species, 1945.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from detente.explain.labels import labels_of
from detente.programs.parts import MOVES, Site

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


@dataclass(frozen=True)
class Matched:
    """Pairs of (position in A, in B). ``same``: the same operation in the same neighbourhood; ``displaced``: the same
    operation, fed by others; ``alike``: of one opcode and dtype, and otherwise another; ``only_a``, ``only_b``:
    positions of what is left; moves are in none of them. ``dice``: how alike the two are by opcode and dtype alone;
    ``identical``: the share of their operations that are ``same``."""

    same: tuple[tuple[int, int], ...]
    displaced: tuple[tuple[int, int], ...]
    alike: tuple[tuple[int, int], ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    dice: float
    identical: float


def match(a: Sequence[Site], b: Sequence[Site]) -> Matched:
    """The operations of two parts, matched."""
    labels_a, labels_b = labels_of(a), labels_of(b)
    rest_a, rest_b = sorted(labels_a), sorted(labels_b)
    found: list[tuple[tuple[int, int], ...]] = []
    # By all that is known of an operation; by what it is itself; by its opcode and dtype.
    for level in (-1, 1, 0):
        pairs = _paired(
            rest_a, rest_b, [labels_a[k][level] for k in rest_a], [labels_b[k][level] for k in rest_b]
        )
        found.append(tuple(pairs))
        taken_a, taken_b = {x for x, _ in pairs}, {y for _, y in pairs}
        rest_a = [k for k in rest_a if k not in taken_a]
        rest_b = [k for k in rest_b if k not in taken_b]
    same, displaced, alike = found
    bag_a, bag_b = _bag(a), _bag(b)
    both, whole = sum((bag_a & bag_b).values()), sum(bag_a.values()) + sum(bag_b.values())
    equal = sum(len(opened(a[x].operation.opcode)) for x, _ in same)
    return Matched(
        same,
        displaced,
        alike,
        tuple(rest_a),
        tuple(rest_b),
        2 * both / whole if whole else 1.0,
        2 * equal / whole if whole else 1.0,
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
