"""What the map of a user's two models refuses: every plausible but wrong map is a question instead."""

from __future__ import annotations

import numpy as np
import pytest

from detente.records.fault import UsageFault
from detente.workloads.own.mapping.map_weights import Tensor, map_weights
from tests.workloads.own_names import (
    bert,
    bert_in_nnx,
    by_name,
    dense,
    gpt2,
    gpt2_in_linen,
    linear,
    mapped,
    norm,
)


def refused(torch, jax, table=None) -> UsageFault:
    with pytest.raises(UsageFault) as caught:
        map_weights(torch, jax, table)
    return caught.value


def test_two_of_one_shape_under_names_that_say_nothing():
    torch = [*linear("first", 8, 8), *linear("second", 8, 8)]
    jax = [*dense("a", 8, 8), *dense("b", 8, 8)]
    fault = refused(torch, jax)
    assert "first.weight (8, 8): a.kernel (8, 8) or b.kernel (8, 8)" in fault.message
    assert '"first": "?",  # a or b' in fault.hint
    rules, *_ = mapped(torch, jax, {"first": "b"})
    assert by_name(rules)["second.weight"] == "a.kernel"


def test_query_is_never_key_though_nothing_else_is_left():
    fault = refused(linear("q_proj", 8, 8), dense("key", 8, 8))
    assert "torch tensors without a leaf:\n  q_proj.bias (8,)\n  q_proj.weight (8, 8)" in fault.message
    assert "leaves without a torch tensor:\n  key.bias (8,)\n  key.kernel (8, 8)" in fault.message


def test_shapes_do_not_repair_a_user_who_swapped_query_and_key():
    torch = [*linear("q", 8, 16), *linear("k", 8, 4)]
    fault = refused(torch, [*dense("query", 8, 4), *dense("key", 8, 16)])
    assert "q.weight (16, 8)" in fault.message and "query.kernel (8, 4)" in fault.message


def test_a_missing_bias_is_named():
    torch = [*linear("fc1", 8, 8), *linear("fc2", 8, 8)]
    fault = refused(torch, [*dense("fc1", 8, 8), *dense("fc2", 8, 8, bias=False)])
    assert fault.message.endswith("torch tensors without a leaf:\n  fc2.bias (8,)")
    assert "use_bias" in fault.hint


def test_a_missing_layer_is_told_by_its_lists():
    fault = refused(gpt2(12), gpt2_in_linen(11))
    assert "12 in torch" in fault.message and "11 in JAX" in fault.message
    assert "and 182 more" in fault.message
    assert len(fault.message.splitlines()) < 45


def test_a_leaf_too_many_is_named():
    fault = refused(linear("fc", 8, 4), [*dense("fc", 8, 4), *dense("head", 4, 2)])
    assert "leaves without a torch tensor:\n  head.bias (2,)\n  head.kernel (4, 2)" in fault.message


def test_a_statistic_is_no_parameter():
    torch = [Tensor("a.scale", (4,), "")]
    assert "not trained" in refused(torch, [Tensor("a.scale", (4,), "", trained=False)]).message


# -- plausible and wrong ---------------------------------------------------------------------------------------------


def test_a_bias_does_not_leave_its_weight_for_the_only_one_of_its_shape():
    torch = [*linear("fc1", 8, 8, bias=False), *linear("fc2", 8, 8)]
    refused(torch, [*dense("fc1", 8, 8), *dense("fc2", 8, 8, bias=False)])


def test_the_only_shapes_that_fit_run_against_the_numbers():
    # In Linen, Dense_0 is what is called first: the JAX model is another.
    torch = [*linear("fc1", 16, 8), *linear("fc2", 8, 16)]
    jax = [*dense("Dense_0", 8, 16, "linen.Dense"), *dense("Dense_1", 16, 8, "linen.Dense")]
    fault = refused(torch, jax)
    assert "would fit, but not with the rest of its module or of its list" in fault.message


def test_adapters_of_other_layers_have_the_same_ranks():
    blocks = [0, 1, 2]
    torch = [t for i in blocks for t in linear(f"blocks.{i}.fc", 8, 4)]
    jax = [t for i in blocks for t in dense(f"blocks.{i}.fc", 8, 4)]
    ours = [t for i in (0, 2) for t in linear(f"blocks.{i}.adapter", 3, 3)]
    theirs = [t for i in (0, 1) for t in dense(f"blocks.{i}.adapter", 3, 3)]
    mapped([*torch, *ours], [*jax, *(t for i in (0, 2) for t in dense(f"blocks.{i}.adapter", 3, 3))])
    assert "blocks.2.adapter" in refused([*torch, *ours], [*jax, *theirs]).message


def test_a_first_layer_and_a_list_are_not_a_list_and_a_head():
    torch = [*[t for i in (0, 2, 4) for t in linear(f"net.{i}", 8, 8)], *linear("head", 8, 8)]
    refused(torch, [*dense("inlet", 8, 8), *[t for i in range(3) for t in dense(f"rest.{i}", 8, 8)]])


def test_layers_of_heads_are_not_heads_of_layers():
    torch = [t for i in range(2) for k in range(2) for t in linear(f"layers.{i}.heads.{k}", 8, 8)]
    jax = [t for i in range(2) for k in range(2) for t in dense(f"heads.{k}.layers.{i}", 8, 8)]
    refused(torch, jax)


def test_two_hints_that_differ_are_not_weighed_against_each_other():
    torch = [*linear("self.out", 8, 8), *linear("ffn.linear", 8, 8)]
    refused(torch, [*dense("ffn.out", 8, 8), *dense("attn.linear", 8, 8)])


def test_an_unnumbered_layer_is_the_first_of_its_list_only_where_a_library_counts_so():
    torch = [t for i in (1, 2, 3) for t in linear(f"fc{i}", 8, 8)]
    for owner in ("nnx.Linear", "keras.Dense"):
        refused(torch, [t for name in ("fc_1", "fc_2", "fc") for t in dense(name, 8, 8, owner)])
    mapped(torch, [t for name in ("dense", "dense_1", "dense_2") for t in dense(name, 8, 8, "keras.Dense")])


def test_two_lists_are_not_one_after_the_other():
    torch = [t for part in ("trunk", "neck") for i in range(2) for t in linear(f"{part}.{i}", 8, 8)]
    refused(torch, [t for i in range(4) for t in dense(f"Dense_{i}", 8, 8, "linen.Dense")])


@pytest.mark.parametrize("name", ["attn.c_attn", "attn.qkv"])
def test_a_users_fused_projection_may_take_turns_by_heads(name):
    # transformers' GPTBigCode does, in a linear layer named c_attn.
    torch = linear(name, 8, 24)
    jax = [
        t
        for part in ("query", "key", "value")
        for t in dense(f"attention.{part}", 8, (2, 4), "nnx.LinearGeneral")
    ]
    refused(torch, jax)
    parts = ["attention.query", "attention.key", "attention.value"]
    _, weights, leaves = mapped(torch, jax, {name: parts})
    for part, w in zip(parts, np.split(weights[f"{name}.weight"], 3), strict=True):
        assert np.array_equal(leaves[f"{part}.kernel"].reshape(8, 8), w.T)


def test_a_square_of_unknown_owner_may_be_transposed():
    torch, jax = linear("fc", 8, 8, bias=False), [Tensor("fc.w", (8, 8), "")]
    fault = refused(torch, jax)
    assert "fc.weight (8, 8) is fc.w (8, 8): same or transposed?" in fault.message
    assert '"fc.weight": ("fc.w", "?"),  # same or transposed' in fault.hint
    for layout in ("same", "transposed"):
        rules, *_ = mapped(torch, jax, {"fc.weight": ("fc.w", layout)})
        assert [rule.layout for rule in rules] == [layout]
    rules, *_ = mapped(linear("fc", 8, 4, bias=False), [Tensor("fc.w", (8, 4), "")])
    assert rules[0].layout == "transposed"


def test_a_stack_of_squares_of_unknown_owner_may_be_swapped():
    # Experts: transformers keeps some as (experts, out, in), others as (experts, in, out).
    torch = [Tensor("experts.up", (4, 8, 8), "Experts")]
    assert "same or swapped" in refused(torch, [Tensor("experts.up", (4, 8, 8), "")]).message
    wide = [Tensor("experts.up", (4, 16, 8), "Experts")]
    assert mapped(wide, [Tensor("experts.up", (4, 8, 16), "")])[0][0].layout == "swapped"


def test_heads_of_unknown_owner_are_asked_for():
    refused(linear("q", 64, 64, bias=False), [Tensor("q.w", (64, 4, 16), "")])


def test_gates_and_transposed_convolutions_have_an_order_that_no_shape_shows():
    cell = [Tensor("cell.bias", (16,), "LSTMCell")]
    refused(cell, [Tensor("cell.bias", (16,), "")])
    torch = [Tensor("up.weight", (8, 4, 3, 3), "ConvTranspose2d"), Tensor("up.bias", (4,), "ConvTranspose2d")]
    jax = [
        Tensor("up.kernel", (3, 3, 4, 8), "keras.Conv2DTranspose"),
        Tensor("up.bias", (4,), "keras.Conv2DTranspose"),
    ]
    assert '"up.weight": "?"' in refused(torch, jax).hint
    mapped(torch, jax, {"up.weight": ("up.kernel", "convolution")})


# -- the table -------------------------------------------------------------------------------------------------------


def test_one_line_of_a_table_is_for_every_layer():
    torch, jax = bert(), bert_in_nnx(("norm1", "norm2"))
    fault = refused(torch, jax)
    assert '"encoder.layer.*.output.LayerNorm": "?",  # layers.*.norm1 or layers.*.norm2' in fault.hint
    rules, *_ = mapped(torch, jax, {"encoder.layer.*.output.LayerNorm": "layers.*.norm2"})
    found = by_name(rules)
    assert found["encoder.layer.10.output.LayerNorm.weight"] == "layers.10.norm2.scale"
    assert found["encoder.layer.2.attention.output.LayerNorm.bias"] == "layers.2.norm1.bias"


def test_stars_are_ranks_and_single_numbers_no_lists():
    rules, *_ = mapped(
        gpt2(3),
        gpt2_in_linen(3),
        {"transformer.h.*.attn.c_proj": "Block_*.MultiHeadDotProductAttention_*.out"},
    )
    assert (
        by_name(rules)["transformer.h.2.attn.c_proj.weight"]
        == "Block_2.MultiHeadDotProductAttention_0.out.kernel"
    )
    fault = refused(gpt2(3), gpt2_in_linen(2), {"transformer.h.*.ln_1": "Block_*.LayerNorm_0"})
    assert "there are 3" in fault.message and "there are 2" in fault.message


def test_a_tables_word_is_final_even_against_the_names():
    torch = [*linear("q", 8, 8), *linear("k", 8, 8)]
    jax = [*dense("query", 8, 8), *dense("key", 8, 8)]
    rules, *_ = mapped(torch, jax, {"q": "key", "k.weight": "query.kernel", "k.bias": "query.bias"})
    assert by_name(rules)["q.weight"] == "key.kernel"


def test_a_longer_name_goes_before_a_shorter_one():
    torch = [*linear("a.x", 8, 8), *linear("a.y", 8, 8)]
    jax = [*dense("b.u", 8, 8), *dense("b.v", 8, 8)]
    rules, *_ = mapped(torch, jax, {"a": "b", "a.x": "b.v"})
    assert by_name(rules)["a.y.weight"] == "b.u.kernel"


def test_several_torch_modules_fill_one_leaf():
    torch = [*linear("q", 8, 8), *linear("k", 8, 4), *linear("v", 8, 4)]
    _, weights, leaves = mapped(torch, dense("qkv", 8, 16), {("q", "k", "v"): "qkv"})
    x = np.random.default_rng(0).standard_normal((3, 8))
    wanted = [x @ weights[f"{n}.weight"].T + weights[f"{n}.bias"] for n in "qkv"]
    assert np.allclose(x @ leaves["qkv.kernel"] + leaves["qkv.bias"], np.concatenate(wanted, -1))


@pytest.mark.parametrize(
    ("table", "said", "hint"),
    [
        ({"fc1x": "a"}, "names 'fc1x', and no torch tensor and no module is called so", "'fc1'"),
        ({"fc1": "aa"}, "names 'aa', and no JAX leaf", "'a'"),
        ({"fc1": "a", "fc2": "a"}, "names the JAX leaf 'a.bias' twice", "one entry"),
        ({"fc1.weight": "a.kernel", "fc2.weight": "a.kernel"}, "twice", "one entry"),
        ({"fc1": ("a", "sideways")}, "sideways", "transposed"),
        ({"fc1.weight": "a.bias"}, "do not fit", "transposed"),
        ({"fc1.weight": ("a.kernel", "convolution")}, "", ""),
        ({("fc1", "fc2"): ["a", "b"]}, "one side of an entry is one name", ""),
        ({"fc1": ["a", "b"]}, "must be as long as the whole", ""),
    ],
)
def test_a_table_that_is_wrong(table, said, hint):
    torch, jax = [*linear("fc1", 8, 4), *linear("fc2", 4, 4)], [*dense("a", 8, 4), *dense("b", 4, 4)]
    if not said:
        mapped(torch, jax, table)  # in a matrix it is the same as "transposed"
        return
    fault = refused(torch, jax, table)
    assert said in fault.message + fault.hint and hint in fault.hint


def test_layers_are_numbered_by_rank():
    torch = [t for i in range(12) for t in linear(f"layers.{i}", 8, 8)]
    for start in (0, 1):
        jax = [t for i in range(start, 12 + start) for t in dense(f"blocks_{i}", 8, 8, "linen.Dense")]
        found = by_name(mapped(torch, jax)[0])
        assert found == {f"layers.{i}.{a}": f"blocks_{i + start}.{b}" for i in range(12)
                         for a, b in (("weight", "kernel"), ("bias", "bias"))}  # fmt: skip


def test_the_norms_of_numbered_layers_are_told_from_the_last():
    found = by_name(mapped(gpt2(), gpt2_in_linen())[0])
    assert found["transformer.ln_f.weight"] == "LayerNorm_0.scale"
    assert found["transformer.h.10.ln_2.weight"] == "Block_10.LayerNorm_1.scale"


@pytest.mark.parametrize("start", [0, 1])
def test_bert_in_names_of_ones_own(start):
    found = by_name(mapped(bert(), bert_in_nnx(start=start))[0])
    assert found["encoder.layer.9.attention.self.key.weight"] == f"layers.{9 + start}.attention.key.kernel"
    assert found["encoder.layer.10.output.LayerNorm.bias"] == f"layers.{10 + start}.mlp_norm.bias"
    assert found["embeddings.LayerNorm.weight"] == "embedding_norm.scale"


def test_a_users_own_parameters():
    torch = [
        Tensor("cls_token", (1, 1, 8), ""),
        Tensor("pos_embed", (1, 5, 8), "ViT"),
        Tensor("scale", (), ""),
    ]
    jax = [Tensor("cls", (8,), ""), Tensor("pos_embedding", (5, 8), ""), Tensor("temperature", (), "")]
    mapped(torch, jax)
    mapped([*torch, *norm("n", 8)], [*jax, *norm("ln", 8, "eqx.LayerNorm")])


def test_a_heads_bias_that_torch_keeps_beside_its_weight():
    # BertLMPredictionHead.
    torch = [
        Tensor("cls.bias", (9,), "Head"),
        *linear("cls.decoder", 8, 9, bias=False),
        *linear("cls.dense", 8, 8),
    ]
    jax = [*dense("lm_head", 8, 9), *dense("transform", 8, 8)]
    assert by_name(mapped(torch, jax)[0])["cls.bias"] == "lm_head.bias"
    refused([*torch, Tensor("seq.bias", (9,), "Head")], jax)
