"""The map of a user's two models: what names decide is found, in the right layout, and what they do not is asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    tensors,
)

# -- an MLP in six libraries -----------------------------------------------------------------------------------------

MLP = [*linear("0", 10, 32), *linear("2", 32, 32), *linear("4", 32, 32), *linear("6", 32, 3)]
SIZES = ((10, 32), (32, 32), (32, 32), (32, 3))
WB, HK = ("weight", "bias"), ("w", "b")


def mlp(names, owner, leaves=("kernel", "bias")):
    return [
        t
        for name, (i, o) in zip(names.split(), SIZES, strict=True)
        for t in dense(name, i, o, owner, leaves=leaves)
    ]


MLPS = {
    "nnx list": mlp("layers.0 layers.1 layers.2 layers.3", "nnx.Linear"),
    "nnx names": mlp("fc1 fc2 fc3 fc4", "nnx.Linear"),
    "nnx sequential with activations": mlp("layers.0 layers.2 layers.4 layers.6", "nnx.Linear"),
    "linen": mlp("Dense_0 Dense_1 Dense_2 Dense_3", "linen.Dense"),
    "equinox": mlp("layers.0 layers.1 layers.2 layers.3", "eqx.Linear", WB),
    "haiku": mlp("linear linear_1 linear_2 linear_3", "haiku.Linear", HK),
    "haiku mlp": mlp("mlp.~.linear_0 mlp.~.linear_1 mlp.~.linear_2 mlp.~.linear_3", "haiku.Linear", HK),
    "keras": mlp("sequential.dense sequential.dense_1 sequential.dense_2 sequential.dense_3", "keras.Dense"),
    "keras, second model": mlp("dense_8 dense_9 dense_10 dense_11", "keras.Dense"),
}


@pytest.mark.parametrize("which", MLPS)
def test_an_mlp_in_six_libraries(which):
    jax = MLPS[which]
    _, weights, leaves = mapped(MLP, jax)
    x = np.random.default_rng(1).standard_normal((5, 10))
    y = x
    for i in range(4):
        kernel, bias = leaves[jax[2 * i].name], leaves[jax[2 * i + 1].name]
        x = x @ weights[f"{2 * i}.weight"].T + weights[f"{2 * i}.bias"]
        y = y @ (kernel.T if which == "equinox" else kernel) + bias
        assert np.allclose(x, y)


# -- a CNN -----------------------------------------------------------------------------------------------------------

CNN = tensors("""
    features.0.weight 16x3x3x3 Conv2d
    features.1.weight 16 BatchNorm2d
    features.1.bias 16 BatchNorm2d
    features.1.running_mean 16 BatchNorm2d state
    features.1.running_var 16 BatchNorm2d state
    features.3.weight 16x16x3x3 Conv2d
    features.4.weight 16 BatchNorm2d
    features.4.bias 16 BatchNorm2d
    features.4.running_mean 16 BatchNorm2d state
    features.4.running_var 16 BatchNorm2d state
    features.6.weight 16x16x3x3 Conv2d
    features.7.weight 16 BatchNorm2d
    features.7.bias 16 BatchNorm2d
    features.7.running_mean 16 BatchNorm2d state
    features.7.running_var 16 BatchNorm2d state
    classifier.weight 5x16 Linear
    classifier.bias 5 Linear
""")


def cnn(convs, norms, head, leaves, owners, space="{}x{}"):
    """leaves: of convolution, norm (4), head (2)."""
    conv, scale, bias, mean, var, weight, offset = leaves.split()
    conv_owner, norm_owner, head_owner = owners.split()
    lines = []
    for name, norm_name, inputs in zip(convs.split(), norms.split(), (3, 16, 16), strict=True):
        shape = f"16x{inputs}x3x3" if "eqx" in conv_owner else f"3x3x{inputs}x16"
        lines.append(f"{name}.{conv} {shape} {conv_owner}")
        wide = "1x1x1x16" if "haiku" in norm_owner else "16"
        lines += [f"{norm_name}.{leaf} {wide} {norm_owner}" for leaf in (scale, bias)]
        lines += [f"{norm_name}.{leaf} {wide} {norm_owner} state" for leaf in (mean, var)]
    matrix = "5x16" if "eqx" in head_owner else "16x5"
    lines += [f"{head}.{weight} {matrix} {head_owner}", f"{head}.{offset} 5 {head_owner}"]
    return tensors("\n".join(lines))


CNNS = {
    "nnx": cnn(
        "conv1 conv2 conv3", "bn1 bn2 bn3", "fc", "kernel scale bias mean var kernel bias",
        "nnx.Conv nnx.BatchNorm nnx.Linear",
    ),
    "linen": cnn(
        "Conv_0 Conv_1 Conv_2", "BatchNorm_0 BatchNorm_1 BatchNorm_2", "Dense_0",
        "kernel scale bias mean var kernel bias", "linen.Conv linen.BatchNorm linen.Dense",
    ),
    "equinox": cnn(
        "layers.0 layers.2 layers.4", "layers.1 layers.3 layers.5", "head",
        "weight weight bias running_mean running_var weight bias", "eqx.Conv2d eqx.BatchNorm eqx.Linear",
    ),
    "haiku": cnn(
        "net.~.conv2_d net.~.conv2_d_1 net.~.conv2_d_2",
        "net.~.batch_norm net.~.batch_norm_1 net.~.batch_norm_2", "net.~.linear",
        "w scale offset ~.mean_ema.average ~.var_ema.average w b", "haiku.Conv2D haiku.BatchNorm haiku.Linear",
    ),
    "keras": cnn(
        "functional.conv2d functional.conv2d_1 functional.conv2d_2",
        "functional.batch_normalization functional.batch_normalization_1 functional.batch_normalization_2",
        "functional.dense", "kernel gamma beta moving_mean moving_variance kernel bias",
        "keras.Conv2D keras.BatchNormalization keras.Dense",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", CNNS)
def test_a_cnn_with_its_statistics(which):
    jax = CNNS[which]
    _, weights, leaves = mapped(CNN, jax)
    for i, number in enumerate((0, 3, 6)):
        kernel, scale, bias, mean, var = (leaves[t.name] for t in jax[5 * i : 5 * i + 5])
        patch = np.random.default_rng(2).standard_normal(weights[f"features.{number}.weight"].shape[1:])
        wanted = np.einsum("oihw,ihw->o", weights[f"features.{number}.weight"], patch)
        got = np.einsum("oihw,ihw->o" if which == "equinox" else "hwio,ihw->o", kernel, patch)
        assert np.allclose(got, wanted)
        for leaf, name in ((scale, "weight"), (bias, "bias"), (mean, "running_mean"), (var, "running_var")):
            assert np.array_equal(leaf.ravel(), weights[f"features.{number + 1}.{name}"])


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("owner", ["nnx.Conv", "haiku.Conv{n}D", "keras.Conv{n}D", "eqx.Conv{n}d"])
def test_convolutions_of_every_rank(rank, owner):
    space = (3, 4, 5)[:rank]
    torch = [Tensor("c.weight", (6, 2, *space), f"Conv{rank}d"), Tensor("c.bias", (6,), f"Conv{rank}d")]
    out_in = owner.startswith("eqx")
    shape, bias = ((6, 2, *space), (6, *(1,) * rank)) if out_in else ((*space, 2, 6), (6,))
    jax = [Tensor("c.w", shape, owner.format(n=rank)), Tensor("c.b", bias, owner.format(n=rank))]
    _, weights, leaves = mapped(torch, jax)
    expected = weights["c.weight"] if out_in else np.moveaxis(weights["c.weight"], (0, 1), (-1, -2))
    assert np.array_equal(leaves["c.w"], expected)


def test_a_depthwise_kernel_of_keras():
    torch = [Tensor("dw.weight", (6, 1, 3, 3), "Conv2d")]
    jax = [Tensor("dw.kernel", (3, 3, 2, 3), "keras.DepthwiseConv2D")]
    _, weights, leaves = mapped(torch, jax)
    # torch's group g gives the channels 3 g to 3 g + 2.
    for group in range(2):
        for m in range(3):
            assert np.array_equal(leaves["dw.kernel"][:, :, group, m], weights["dw.weight"][3 * group + m, 0])


# -- attention -------------------------------------------------------------------------------------------------------

E, H, D = 8, 2, 4
TORCH_BLOCKS = {
    "llama": [
        *[t for p in ("q_proj", "k_proj", "v_proj", "o_proj") for t in linear(f"self_attn.{p}", E, E)],
        *linear("mlp.fc1", E, 32), *linear("mlp.fc2", 32, E),
        *norm("norm1", E), *norm("norm2", E),
    ],
    "nn.TransformerEncoderLayer": [
        Tensor("self_attn.in_proj_weight", (3 * E, E), "MultiheadAttention"),
        Tensor("self_attn.in_proj_bias", (3 * E,), "MultiheadAttention"),
        Tensor("self_attn.out_proj.weight", (E, E), "NonDynamicallyQuantizableLinear"),
        Tensor("self_attn.out_proj.bias", (E,), "NonDynamicallyQuantizableLinear"),
        *linear("linear1", E, 32), *linear("linear2", 32, E),
        *norm("norm1", E), *norm("norm2", E),
    ],
    "gpt2": [
        Tensor("attn.c_attn.weight", (E, 3 * E), "Conv1D"), Tensor("attn.c_attn.bias", (3 * E,), "Conv1D"),
        Tensor("attn.c_proj.weight", (E, E), "Conv1D"), Tensor("attn.c_proj.bias", (E,), "Conv1D"),
        Tensor("mlp.c_fc.weight", (E, 32), "Conv1D"), Tensor("mlp.c_fc.bias", (32,), "Conv1D"),
        Tensor("mlp.c_proj.weight", (32, E), "Conv1D"), Tensor("mlp.c_proj.bias", (E,), "Conv1D"),
        *norm("ln_1", E), *norm("ln_2", E),
    ],
}  # fmt: skip


def heads(at, owner, names=("query", "key", "value", "out")):
    inward = [t for name in names[:3] for t in dense(f"{at}.{name}", E, (H, D), owner)]
    return inward + dense(f"{at}.{names[3]}", (H, D), E, owner)


JAX_BLOCKS = {
    "nnx": [
        *heads("attention", "nnx.LinearGeneral"),
        *dense("mlp.linear1", E, 32), *dense("mlp.linear2", 32, E),
        *norm("norm1", E, "nnx.LayerNorm", ("scale", "bias")), *norm("norm2", E, "nnx.LayerNorm", ("scale", "bias")),
    ],
    "linen": [
        *heads("MultiHeadDotProductAttention_0", "linen.DenseGeneral"),
        *dense("Dense_0", E, 32, "linen.Dense"), *dense("Dense_1", 32, E, "linen.Dense"),
        *norm("LayerNorm_0", E, "linen.LayerNorm", ("scale", "bias")),
        *norm("LayerNorm_1", E, "linen.LayerNorm", ("scale", "bias")),
    ],
    "equinox": [
        *[t for p in ("query", "key", "value", "output")
          for t in dense(f"attention.{p}_proj", E, E, "eqx.Linear", leaves=WB)],
        *dense("mlp.layers.0", E, 32, "eqx.Linear", leaves=WB), *dense("mlp.layers.1", 32, E, "eqx.Linear", leaves=WB),
        *norm("norm1", E, "eqx.LayerNorm"), *norm("norm2", E, "eqx.LayerNorm"),
    ],
    "haiku": [
        *[t for p in ("query", "key", "value", "linear")
          for t in dense(f"block.~.multi_head_attention.{p}", E, E, "haiku.Linear", leaves=HK)],
        *dense("block.~.mlp.~.linear_0", E, 32, "haiku.Linear", leaves=HK),
        *dense("block.~.mlp.~.linear_1", 32, E, "haiku.Linear", leaves=HK),
        *norm("block.~.layer_norm", E, "haiku.LayerNorm", ("scale", "offset")),
        *norm("block.~.layer_norm_1", E, "haiku.LayerNorm", ("scale", "offset")),
    ],
    "keras": [
        *heads("block.multi_head_attention", "keras.EinsumDense", ("query", "key", "value", "attention_output")),
        *dense("block.dense", E, 32, "keras.Dense"), *dense("block.dense_1", 32, E, "keras.Dense"),
        *norm("block.layer_normalization", E, "keras.LayerNormalization", ("gamma", "beta")),
        *norm("block.layer_normalization_1", E, "keras.LayerNormalization", ("gamma", "beta")),
    ],
}  # fmt: skip
ASIDE = {"nnx": "attention.{}", "linen": "MultiHeadDotProductAttention_0.{}", "equinox": "attention.{}_proj",
         "haiku": "block.~.multi_head_attention.{}", "keras": "block.multi_head_attention.{}"}  # fmt: skip
OUT = {"equinox": "output", "haiku": "linear", "keras": "attention_output"}


def projection(torch, weights, which, x):
    """x through torch's query, key, value or out, by the definition of its modules."""
    i = ("query", "key", "value", "out").index(which)
    if torch == "llama":
        name = f"self_attn.{'qkvo'[i]}_proj"
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    if torch == "gpt2":
        if which == "out":
            return x @ weights["attn.c_proj.weight"] + weights["attn.c_proj.bias"]
        return np.split(x @ weights["attn.c_attn.weight"] + weights["attn.c_attn.bias"], 3, -1)[i]
    if which == "out":
        return x @ weights["self_attn.out_proj.weight"].T + weights["self_attn.out_proj.bias"]
    w, b = (
        np.split(weights["self_attn.in_proj_weight"], 3)[i],
        np.split(weights["self_attn.in_proj_bias"], 3)[i],
    )
    return x @ w.T + b


@pytest.mark.parametrize("theirs", JAX_BLOCKS)
@pytest.mark.parametrize("ours", TORCH_BLOCKS)
def test_a_block_with_projections_of_one_shape(ours, theirs):
    _, weights, leaves = mapped(TORCH_BLOCKS[ours], JAX_BLOCKS[theirs])
    x = np.random.default_rng(3).standard_normal((5, E))
    for which in ("query", "key", "value", "out"):
        name = ASIDE[theirs].format(OUT.get(theirs, which) if which == "out" else which)
        kernel, bias = (
            leaves[f"{name}.{leaf}"] for leaf in {"equinox": WB, "haiku": HK}.get(theirs, ("kernel", "bias"))
        )
        matrix = kernel.T if theirs == "equinox" else kernel.reshape(E, E)
        assert np.allclose(x @ matrix + bias.reshape(E), projection(ours, weights, which, x)), which
    first, second = [t.name for t in JAX_BLOCKS[theirs] if "norm" in t.name.lower()][::2]
    ours_first = "ln_1" if ours == "gpt2" else "norm1"
    assert np.array_equal(leaves[first], weights[f"{ours_first}.weight"])
    assert not np.array_equal(leaves[second], weights[f"{ours_first}.weight"])


def test_the_axes_of_the_heads_are_torchs_views():
    torch = [*linear("q_proj", 6, 8), *linear("o_proj", 8, 6)]
    _, weights, leaves = mapped(torch, [*dense("query", 6, (2, 4), "nnx.LinearGeneral"),
                                        *dense("out", (2, 4), 6, "nnx.LinearGeneral")])  # fmt: skip
    x = np.random.default_rng(4).standard_normal((5, 6))
    q = (x @ weights["q_proj.weight"].T + weights["q_proj.bias"]).reshape(5, 2, 4)
    assert np.allclose(np.einsum("ni,ihd->nhd", x, leaves["query.kernel"]) + leaves["query.bias"], q)
    o = q.reshape(5, 8) @ weights["o_proj.weight"].T + weights["o_proj.bias"]
    assert np.allclose(np.einsum("nhd,hdo->no", q, leaves["out.kernel"]) + leaves["out.bias"], o)


def decoder(attentions, owner=""):
    """Two attentions, whose parts have one shape, in an encoder and a decoder."""
    found = []
    for at in attentions:
        if owner:
            found += heads(at, owner)
        else:
            found += [
                t for p in ("q_proj", "k_proj", "v_proj", "out_proj") for t in linear(f"{at}.{p}", E, E)
            ]
    return found


def test_self_and_cross_attention_of_encoder_and_decoder():
    # nn.Transformer's name of the decoder's cross attention says only that it has heads.
    torch = decoder(("encoder.0.self_attn", "decoder.0.self_attn", "decoder.0.multihead_attn"))
    jax = decoder(
        ("encoder.self_attention", "decoder.self_attention", "decoder.cross_attention"), "nnx.LinearGeneral"
    )
    found = by_name(mapped(torch, jax)[0])
    assert found["decoder.0.multihead_attn.k_proj.weight"] == "decoder.cross_attention.key.kernel"
    assert found["encoder.0.self_attn.out_proj.bias"] == "encoder.self_attention.out.bias"


SHUFFLED = {
    **{f"mlp {name}": (MLP, jax) for name, jax in MLPS.items()},
    **{f"cnn {name}": (CNN, jax) for name, jax in CNNS.items()},
    **{f"{a} {b}": (TORCH_BLOCKS[a], JAX_BLOCKS[b]) for a in TORCH_BLOCKS for b in JAX_BLOCKS},
    "bert": (bert(3), bert_in_nnx(layers=3)),
    "gpt2": (gpt2(3), gpt2_in_linen(3)),
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SHUFFLED)), st.randoms(use_true_random=False))
def test_the_order_of_the_lists_says_nothing(which, rng):
    torch, jax = SHUFFLED[which]
    wanted = map_weights(torch, jax)
    ours, theirs = list(torch), list(jax)
    rng.shuffle(ours)
    rng.shuffle(theirs)
    assert map_weights(ours, theirs) == wanted


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SHUFFLED)), st.data())
def test_a_model_without_one_tensor_is_refused(which, data):
    torch, jax = SHUFFLED[which]
    sides = [list(torch), list(jax)]
    short = data.draw(st.sampled_from(sides))
    short.pop(data.draw(st.integers(0, len(short) - 1)))
    with pytest.raises(UsageFault):
        map_weights(*sides)


# -- layers in one stack ---------------------------------------------------------------------------------------------


def in_a_stack(jax, layers: int):
    """Layers ``layers.0`` to ``layers.N`` as nnx.scan keeps them."""
    first = [t for t in jax if t.name.startswith("layers.0.")]
    rest = [t for t in jax if not t.name.startswith("layers.")]
    stacked = [type(t)(t.name.replace(".0.", ".", 1), (layers, *t.shape), t.owner, t.trained) for t in first]
    return [*rest, *stacked]


@pytest.mark.parametrize("layers", [2, 12])
def test_layers_in_one_stack_are_mapped_like_layers_of_their_own(layers):
    apart = {rule.name: rule for rule in mapped(bert(layers), bert_in_nnx(layers=layers))[0]}
    rules, weights, leaves = mapped(bert(layers), in_a_stack(bert_in_nnx(layers=layers), layers))
    for rule in rules:
        alone = apart[rule.name]
        assert (rule.layout, rule.reshape, rule.piece) == (alone.layout, alone.reshape, alone.piece)
        if rule.layer is not None:
            assert f"layers.{rule.layer}." + ".".join(rule.path[1:]) == ".".join(alone.path)
    last = weights[f"encoder.layer.{layers - 1}.intermediate.dense.weight"]
    assert np.array_equal(leaves["layers.fc1.kernel"][-1], last.T)


def test_a_stack_with_a_layer_less_is_refused():
    with pytest.raises(UsageFault):
        map_weights(bert(12), in_a_stack(bert_in_nnx(layers=11), 11))


def test_a_table_names_the_layers_of_a_stack():
    called = {"attention.query": "attention.alpha", "attention.key": "attention.beta"}
    jax = in_a_stack(bert_in_nnx(layers=3), 3)
    for one, other in called.items():
        jax = [type(t)(t.name.replace(one, other), t.shape, t.owner, t.trained) for t in jax]
    with pytest.raises(UsageFault, match=r"layers\.0\.attention\.alpha"):
        map_weights(bert(3), jax)
    at = "encoder.layer.*.attention.self"
    table = {f"{at}.query": "layers.*.attention.alpha", f"{at}.key": "layers.*.attention.beta"}
    rules, _, _ = mapped(bert(3), jax, table)
    assert {r.layer for r in rules if r.path == ("layers", "attention", "alpha", "kernel")} == {0, 1, 2}


# -- norms that are called by what they stand behind -----------------------------------------------------------------


def blocks(names, prefix="layers", owner="LlamaRMSNorm", leaves=("weight",)):
    return [t for i in range(2) for name in names for t in norm(f"{prefix}.{i}.{name}", 8, owner, leaves)]


def test_llamas_norms_go_to_what_they_stand_in_front_of():
    ours = blocks(("input_layernorm", "post_attention_layernorm"))
    rules, _, _ = mapped(ours, blocks(("attention_norm", "ffn_norm"), owner="nnx.RMSNorm", leaves=("scale",)))
    found = by_name(rules)
    assert found["layers.1.input_layernorm.weight"] == "layers.1.attention_norm.scale"
    assert found["layers.1.post_attention_layernorm.weight"] == "layers.1.ffn_norm.scale"
    # A port under the same names.
    rules, _, _ = mapped(ours, blocks(("input_layernorm", "post_attention_layernorm"), leaves=("scale",)))
    assert by_name(rules)["layers.0.input_layernorm.weight"] == "layers.0.input_layernorm.scale"


def test_what_stands_behind_attention_is_no_norm_of_attention():
    """Where a block has four, post_attention means what it says; a port of two other names is asked about."""
    four = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
    rules, _, _ = mapped(blocks(four), blocks(four, leaves=("scale",)))
    assert all(
        theirs.rpartition(".")[0] == ours.rpartition(".")[0] for ours, theirs in by_name(rules).items()
    )
    with pytest.raises(UsageFault, match="post_attention_norm"):
        map_weights(
            blocks(("input_norm", "post_attention_norm")),
            blocks(("attention_norm", "ffn_norm"), owner="nnx.RMSNorm", leaves=("scale",)),
        )
