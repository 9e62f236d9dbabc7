"""Equal layers as one, and the one that differs beside them."""

from __future__ import annotations

from collections import Counter

import pytest

from detente.programs.fold import fold, is_called, starred
from detente.programs.module import Instruction, Shape
from detente.programs.parts import Facts, Part, parts, sites
from tests.programs.build import parameter, program


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


def of_sizes(*sizes: int):
    """A layer each, of a hyperbolic tangent over so many numbers."""
    given = [parameter(k, n) for k, n in enumerate(sizes)]
    tanhs = [
        Instruction("tanh", (Shape("f32", (n,)),), (k,), origin=f"jit(f)/jvp(h.{k})/ln/tanh")
        for k, n in enumerate(sizes)
    ]
    whole = Instruction("tuple", (), tuple(range(len(sizes), 2 * len(sizes))))
    return parts(sites(program([*given, *tanhs, whole])))


def test_layers_of_other_sizes_are_not_equal() -> None:
    """A norm has no product, and its 64 channels and another's 2,048 were one row."""
    assert [(f.path, f.times) for f in fold(of_sizes(64, 64, 2048))] == [("h.*.ln", 2), ("h.2.ln", 1)]


def test_a_star_is_where_members_differ() -> None:
    table = {
        Part(f"stage.{s}.{k}.conv", "forward"): facts(opcode=f"of_stage_{s}") for s in (0, 1) for k in (0, 1)
    }
    assert [f.path for f in fold(table)] == ["stage.0.*.conv", "stage.1.*.conv"]


def test_the_pieces_of_a_sequential_are_no_layers() -> None:
    table = {Part(f"net.{k}", "forward"): facts() for k in range(3)}
    assert [(f.path, f.times) for f in fold(table)] == [("net.0", 1), ("net.1", 1), ("net.2", 1)]


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        (["0.0", "0.1", "1.0", "1.1", "2"], ["*.0", "*.1", "*.0", "*.1", "2"]),
        # The first block of each stage has a shortcut, and the stages have as many blocks as they like.
        (
            ["s.0.0.conv", "s.0.0.short.conv", "s.0.1.conv", "s.0.2.conv",
             "s.1.0.conv", "s.1.0.short.conv", "s.1.1.conv", "s.1.2.conv", "s.1.3.conv"],
            ["s.*.0.conv", "s.*.0.short.conv", "s.*.*.conv", "s.*.*.conv",
             "s.*.0.conv", "s.*.0.short.conv", "s.*.*.conv", "s.*.*.conv", "s.*.*.conv"],
        ),
        # Rolled up by the program itself, beside a layer that was not.
        (["h.0.mlp", "h.*.mlp"], ["h.*.mlp", "h.*.mlp"]),
        (["features.0", "features.3", "classifier.0"], ["features.0", "features.3", "classifier.0"]),
        (["", "a"], ["", "a"]),
    ],
)  # fmt: skip
def test_layers_are_what_holds_the_same_modules(paths: list[str], wanted: list[str]) -> None:
    assert [starred(paths)(path) for path in paths] == wanted


def test_a_path_of_many_thousand_names_ends() -> None:
    path = ".".join("0" * 20_000)
    assert starred([path, f"1.{path}"])(path) == path


def test_a_reader_may_put_a_star_for_any_number() -> None:
    assert is_called("stage.0.3.conv", "stage.0.*.conv") and is_called("h_3.ln", "h_*.ln")
    assert not is_called("stage.1.3.conv", "stage.0.*.conv") and not is_called("h.attn", "h.*")
    assert is_called("h.*.attn", "h.*.attn") and not is_called("hx0", "h.0")
