"""Equal layers as one, and the one that differs beside them."""

from __future__ import annotations

from collections import Counter

from detente.programs.fold import fold
from detente.programs.parts import Facts, Part


def facts(operations: int = 3, opcode: str = "dot") -> Facts:
    return Facts(operations, 100, 10, Counter({opcode: operations}), Counter(f32=operations), Counter())


def test_twelve_equal_layers_are_one() -> None:
    directions = ("forward", "backward")
    table = {
        Part(f"h.{k}.{name}", d): facts() for k in range(12) for name in ("attn", "mlp") for d in directions
    }
    found = fold(table)
    assert [(f.path, f.direction, f.times) for f in found] == [
        ("h.*.attn", "forward", 12),
        ("h.*.attn", "backward", 12),
        ("h.*.mlp", "forward", 12),
        ("h.*.mlp", "backward", 12),
    ]


def test_a_layer_that_differs_stands_alone() -> None:
    table = {Part(f"h.{k}.attn", "forward"): facts(4 if k == 7 else 3) for k in range(12)}
    assert {(f.path, f.times) for f in fold(table)} == {("h.*.attn", 11), ("h.7.attn", 1)}


def test_names_that_end_in_numbers_are_layers_too() -> None:
    table = {Part(f"h_{k}.ln_1", "forward"): facts() for k in range(3)}
    (one,) = fold(table)
    assert (one.path, one.times) == ("h_*.ln_1", 3)


def test_two_norms_of_one_block_are_two() -> None:
    """``ln_1`` and ``ln_2`` hold the same operations, and are no layers."""
    table = {Part(f"h.{k}.{n}", "forward"): facts() for k in range(3) for n in ("ln_1", "ln_2")}
    assert {(f.path, f.times) for f in fold(table)} == {("h.*.ln_1", 3), ("h.*.ln_2", 3)}
