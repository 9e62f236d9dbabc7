"""The weight map: layouts are inverses, stacked leaves keep their order, hashes see every difference."""

from __future__ import annotations

import numpy as np
import pytest

from detente.records.fault import UsageFault
from detente.workloads.weights import (
    LAYOUTS,
    Reshape,
    Slice,
    WeightRule,
    canonical_hash,
    to_canonical,
    to_framework,
)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("same", (3,)),
        ("transposed", (2, 3)),
        ("convolution", (2, 3, 4)),
        ("convolution", (2, 3, 4, 5)),
        ("convolution", (2, 3, 4, 5, 6)),
        ("swapped", (2, 3, 4)),
    ],
)
def test_layouts_are_inverses(layout, shape):
    array = np.arange(np.prod(shape)).reshape(shape)
    there = LAYOUTS[layout].there(array)
    assert np.array_equal(LAYOUTS[layout].back(there), array)


def test_a_convolution_becomes_height_width_in_out():
    there = LAYOUTS["convolution"].there(np.zeros((2, 3, 4, 5)))
    assert there.shape == (4, 5, 3, 2)
    assert LAYOUTS["convolution"].there(np.zeros((2, 3, 4))).shape == (4, 3, 2)
    assert LAYOUTS["convolution"].there(np.zeros((2, 3, 4, 5, 6))).shape == (4, 5, 6, 3, 2)


def test_every_layout_is_tested():
    assert set(LAYOUTS) == {"same", "transposed", "convolution", "swapped"}


def test_stacked_layers_keep_their_order_whatever_the_order_of_rules():
    rules = [WeightRule(f"h.{i}.w", ("h", "w"), "transposed", layer=i) for i in (2, 0, 1)]
    canonical = {f"h.{i}.w": np.full((2, 3), i) for i in range(3)}
    leaves = to_framework(rules, canonical)
    assert leaves["h", "w"].shape == (3, 3, 2)
    assert list(leaves["h", "w"][:, 0, 0]) == [0, 1, 2]
    assert canonical_hash(to_canonical(rules, leaves)) == canonical_hash(canonical)


def test_an_absent_tensor_is_named():
    with pytest.raises(KeyError, match=r"h\.0\.w"):
        to_framework([WeightRule("h.0.w", ("w",))], {})


def test_the_hash_sees_name_shape_dtype_and_value():
    base = {"w": np.zeros((2, 3), np.float32)}
    others = (
        {"v": base["w"]},
        {"w": base["w"].reshape(3, 2)},
        {"w": base["w"].view(np.int32)},
        {"w": base["w"] + 1},
    )
    assert len({canonical_hash(t) for t in (base, *others)}) == 5


def test_the_hash_does_not_see_memory_order():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert canonical_hash({"w": array}) == canonical_hash({"w": np.asfortranarray(array)})


GATES = [
    WeightRule("w", (g, "kernel"), "transposed", piece=Slice(0, 3 * i, 3 * i + 3))
    for i, g in enumerate("ifgo")
]
JOIN = [WeightRule(n, ("qkv",), into=Slice(1, s, e)) for n, s, e in (("q", 0, 4), ("k", 4, 6), ("v", 6, 8))]


def there_and_back(rules, canonical):
    leaves = to_framework(rules, canonical)
    assert canonical_hash(to_canonical(rules, leaves)) == canonical_hash(canonical)
    # The rules' order is nobody's business.
    again = to_framework(rules[::-1], canonical)
    assert again.keys() == leaves.keys() and all(np.array_equal(again[p], leaves[p]) for p in leaves)
    return leaves


def test_one_tensor_becomes_several_leaves():
    w = np.arange(24.0).reshape(12, 2)
    leaves = there_and_back(GATES, {"w": w})
    assert set(leaves) == {(g, "kernel") for g in "ifgo"}
    assert np.array_equal(leaves["g", "kernel"], w[6:9].T)


def test_several_tensors_become_one_leaf():
    canonical = {"q": np.full((2, 4), 1.0), "k": np.full((2, 2), 2.0), "v": np.full((2, 2), 3.0)}
    assert there_and_back(JOIN, canonical)["qkv",][0].tolist() == [1, 1, 1, 1, 2, 2, 3, 3]


def test_heads_get_an_axis_of_their_own():
    rule = WeightRule("w", ("kernel",), "transposed", reshape=Reshape((5, 6), (5, 3, 2)))
    w = np.arange(30.0).reshape(6, 5)
    assert np.array_equal(there_and_back([rule], {"w": w})["kernel",][:, 1, :], w[2:4].T)


def test_all_of_it_at_once_in_stacked_layers():
    """Query, key and value of each layer lie in one tensor here, and in one leaf of all layers there, with heads."""
    rules = [
        WeightRule(
            f"h.{layer}.qkv",
            (name,),
            "transposed",
            layer,
            Slice(0, 4 * i, 4 * i + 4),
            Reshape((3, 4), (3, 2, 2)),
        )
        for layer in (1, 0)
        for i, name in enumerate("qkv")
    ]
    rng = np.random.default_rng(0)
    canonical = {f"h.{layer}.qkv": rng.standard_normal((12, 3)) for layer in range(2)}
    leaves = there_and_back(rules, canonical)
    assert leaves["k",].shape == (2, 3, 2, 2)
    assert np.array_equal(leaves["k",][1].reshape(3, 4), canonical["h.1.qkv"][4:8].T)


W = np.zeros((12, 2))
QKV = {"q": np.zeros((2, 4)), "k": np.zeros((2, 2)), "v": np.zeros((2, 2))}
WRONG = {
    "two rules on one leaf": (
        [WeightRule("a", ("x", "w")), WeightRule("b", ("x", "w"))],
        {"a": W, "b": W},
        r"the leaf \('x', 'w'\) has 2 rules: 'a' and 'b'",
    ),
    "two rules on one layer of a leaf": (
        [WeightRule("a", ("w",), layer=0), WeightRule("b", ("w",), layer=0)],
        {"a": W, "b": W},
        r"the leaf \('w',\) has 2 rules",
    ),
    "one tensor to two leaves": (
        [WeightRule("a", ("x",)), WeightRule("a", ("y",))],
        {"a": W},
        "the canonical tensor 'a' has 2 rules",
    ),
    "a missing layer": ([WeightRule("a", ("w",), layer=1)], {"a": W}, "has no layer 0"),
    "a leaf whole and by layers": (
        [WeightRule("a", ("w",)), WeightRule("b", ("w",), layer=0)],
        {"a": W, "b": W},
        "given whole and by layers",
    ),
    "a gap": (
        GATES[:1] + GATES[2:],
        {"w": W},
        r"'g', 'kernel'.* has 6 to 9 of axis 0, and leaf .*'i'.* ends at 3",
    ),
    "an end that is missing": (GATES[:3], {"w": W}, r"'w' has \(12, 2\), and its pieces end at 9"),
    "an overlap": ([*JOIN[:2], WeightRule("v", ("qkv",), into=Slice(1, 5, 7))], QKV, "'v' has 5 to 7"),
    "a part of another length": (
        [*JOIN[:2], WeightRule("v", ("qkv",), into=Slice(1, 6, 9))],
        QKV,
        r"takes 'v' at 6 to 9 of axis 1, and it has \(2, 2\)",
    ),
    "two axes": (
        [*JOIN[:2], WeightRule("v", ("qkv",), into=Slice(0, 6, 8))],
        QKV,
        r"along the axes \[0, 1\]",
    ),
    "another shape": (
        [WeightRule("w", ("w",), reshape=Reshape((2, 12), (24,)))],
        {"w": W},
        r"'w' reshapes \(2, 12\) to \(24,\), and there is \(12, 2\)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_rules_that_would_lose_a_weight_are_refused_by_name(case):
    rules, canonical, says = WRONG[case]
    with pytest.raises(UsageFault, match=says):
        to_framework(rules, canonical)


def test_pieces_with_a_gap_are_refused_on_the_way_back_too():
    leaves = to_framework(GATES, {"w": W})
    with pytest.raises(UsageFault, match="ends at 3"):
        to_canonical([GATES[0], *GATES[2:]], leaves)
