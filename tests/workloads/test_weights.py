"""The weight map: layouts are inverses, stacked leaves keep their order, hashes see every difference."""

from __future__ import annotations

import numpy as np
import pytest

from detente.workloads.weights import LAYOUTS, WeightRule, canonical_hash, to_canonical, to_framework


@pytest.mark.parametrize(
    ("layout", "shape"), [("same", (3,)), ("transposed", (2, 3)), ("convolution", (2, 3, 4, 5))]
)
def test_layouts_are_inverses(layout, shape):
    array = np.arange(np.prod(shape)).reshape(shape)
    there = LAYOUTS[layout].there(array)
    assert np.array_equal(LAYOUTS[layout].back(there), array)


def test_a_convolution_becomes_height_width_in_out():
    there = LAYOUTS["convolution"].there(np.zeros((2, 3, 4, 5)))
    assert there.shape == (4, 5, 3, 2)


def test_every_layout_is_tested():
    assert set(LAYOUTS) == {"same", "transposed", "convolution"}


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
