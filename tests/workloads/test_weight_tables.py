"""Tables of modules become the rules that one would have written: names, paths, layouts, layers, groups, joins."""

from __future__ import annotations

import numpy as np
import pytest

from detente.records.fault import UsageFault
from detente.workloads.weight_tables import (
    EMBEDDING,
    LINEAR,
    NORM,
    At,
    from_heads,
    join,
    parameter,
    repeated,
    rules_of,
    to_heads,
)
from detente.workloads.weights import WeightRule, canonical_hash, to_canonical, to_framework


def there_and_back(rules, canonical):
    leaves = to_framework(rules, canonical)
    assert canonical_hash(to_canonical(rules, leaves)) == canonical_hash(canonical)
    return leaves


def test_a_module_lies_under_its_own_path_or_under_another():
    table = {"ln": NORM, "self.query": At("attention.query", LINEAR[:1]), "": parameter("token")}
    assert rules_of(table, torch="model.h.3", other="h.3") == [
        WeightRule("model.h.3.ln.weight", ("h", 3, "ln", "scale")),
        WeightRule("model.h.3.ln.bias", ("h", 3, "ln", "bias")),
        WeightRule("model.h.3.self.query.weight", ("h", 3, "attention", "query", "kernel"), "transposed"),
        WeightRule("model.h.3.token", ("h", 3, "token")),
    ]


@pytest.mark.parametrize("scan", [False, True])
def test_repeated_layers_are_stacked_in_their_order(scan):
    rules = repeated({"fc": LINEAR[:1]}, 3, torch="model.h", other="h", scan=scan)
    leaves = there_and_back(rules, {f"model.h.{i}.fc.weight": np.full((2, 4), i) for i in range(3)})
    for i in range(3):
        leaf = leaves["h", "fc", "kernel"][i] if scan else leaves["h", i, "fc", "kernel"]
        assert leaf.shape == (4, 2) and (leaf == i).all()


@pytest.mark.parametrize("scan", [False, True])
def test_layers_that_take_turns_have_a_name_each(scan):
    rules = repeated({"e": EMBEDDING}, 4, torch="h", other="pairs", scan=scan, members=("wide", "near"))
    leaves = there_and_back(rules, {f"h.{i}.e.weight": np.full((2, 3), i) for i in range(4)})
    for i, (pair, member) in enumerate([(0, "wide"), (0, "near"), (1, "wide"), (1, "near")]):
        path = ("pairs", member, "e", "embedding") if scan else ("pairs", pair, member, "e", "embedding")
        assert ((leaves[path][pair] if scan else leaves[path]) == i).all()


def test_heads_lie_on_an_axis_of_their_own_in_the_order_torch_has_them_side_by_side():
    rules = [*rules_of({"q": to_heads(5, 3, 2)}), *rules_of({"o": from_heads(3, 2, 5)})]
    rng = np.random.default_rng(0)
    shapes = {"q.weight": (6, 5), "q.bias": (6,), "o.weight": (5, 6), "o.bias": (5,)}
    canonical = {n: rng.standard_normal(s) for n, s in shapes.items()}
    leaves = there_and_back(rules, canonical)
    assert np.array_equal(leaves["q", "kernel"][:, 1], canonical["q.weight"][2:4].T)
    assert np.array_equal(leaves["q", "bias"][1], canonical["q.bias"][2:4])
    assert np.array_equal(leaves["o", "kernel"][1], canonical["o.weight"][:, 2:4].T)


def test_several_modules_fill_one_kernel():
    rules = []
    for name, start, stop in (("k", 4, 6), ("q", 0, 4), ("v", 6, 8)):
        rules += rules_of({name: At("qkv", join(LINEAR, start, stop))})
    rng = np.random.default_rng(0)
    canonical = {f"{n}.weight": rng.standard_normal((e, 3)) for n, e in (("q", 4), ("k", 2), ("v", 2))}
    canonical |= {f"{n}.bias": rng.standard_normal(e) for n, e in (("q", 4), ("k", 2), ("v", 2))}
    leaves = there_and_back(rules, canonical)
    assert np.array_equal(leaves["qkv", "kernel"][:, 4:6], canonical["k.weight"].T)
    assert np.array_equal(leaves["qkv", "bias"][6:], canonical["v.bias"])


def test_heads_that_do_not_fit_the_weight_are_refused():
    with pytest.raises(UsageFault, match=r"'q\.weight' reshapes \(5, 6\).* and there is \(5, 8\)"):
        to_framework(rules_of({"q": to_heads(5, 3, 2)[:1]}), {"q.weight": np.zeros((8, 5))})
