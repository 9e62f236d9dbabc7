"""Rolled equals written out on models as ``transformers`` ships them: loss, every gradient, every buffer, in float64
and with dropout on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import transformers as hf
from torch.overrides import TorchFunctionMode

from detente.bridge.capture.batch import flatten
from detente.bridge.capture.capture import capture
from detente.bridge.graph import Graph, without_dead
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.passes.connected import connected
from detente.bridge.passes.masks import recognise_masks
from detente.bridge.program.program import Program
from detente.bridge.random.keys import step_key
from detente.bridge.roll.fold import ROLL, roll
from detente.bridge.roll.lower import with_remat
from detente.bridge.roll.stacks import stacked
from detente.bridge.state.place import to_jax

IDS = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))
WIDTHS = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64}
LLAMA = {**WIDTHS, "num_key_value_heads": 2}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}


class Double(TorchFunctionMode):
    """A model that widens to float32 by name widens to float64 here: else its own rounding (1e-7) hides ours."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def widened(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if getattr(func, "__name__", "") == "float":
            func = torch.Tensor.double
        return func(*[widened(a) for a in args], **{k: widened(v) for k, v in (kwargs or {}).items()})


def pictures() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}


def text() -> dict[str, torch.Tensor]:
    return {"input_ids": IDS, "labels": IDS}


def gpt2() -> Any:
    config = hf.GPT2Config(n_layer=4, n_embd=32, n_head=2, vocab_size=64, n_positions=32, **NO_TOKENS)
    return hf.GPT2LMHeadModel(config), text()


def bert() -> Any:
    return hf.BertForMaskedLM(hf.BertConfig(num_hidden_layers=4, **WIDTHS)), text()


def vit() -> Any:
    widths = {k: v for k, v in WIDTHS.items() if k != "vocab_size"}
    config = hf.ViTConfig(num_hidden_layers=4, image_size=16, patch_size=4, hidden_dropout_prob=0.1, **widths)
    return hf.ViTForImageClassification(config), pictures()


def resnet() -> Any:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[4, 2], layer_type="basic")
    return hf.ResNetForImageClassification(config), pictures()


def llama() -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(num_hidden_layers=4, attention_dropout=0.1, **LLAMA)), text()


def t5() -> Any:
    config = hf.T5Config(
        num_layers=4,
        num_decoder_layers=4,
        d_model=32,
        d_ff=64,
        num_heads=2,
        d_kv=16,
        vocab_size=64,
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(config), text()


def whisper() -> Any:
    config = hf.WhisperConfig(
        encoder_layers=3,
        decoder_layers=3,
        d_model=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        vocab_size=64,
        max_source_positions=16,
        max_target_positions=16,
        num_mel_bins=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=0.1,
    )
    batch = {"input_features": torch.randn(2, 8, 32), "labels": IDS}
    return hf.WhisperForConditionalGeneration(config), batch


def mamba() -> Any:
    config = hf.MambaConfig(num_hidden_layers=3, hidden_size=32, state_size=4, vocab_size=64)
    return hf.MambaForCausalLM(config), text()


def qwen3_moe() -> Any:
    config = hf.Qwen3MoeConfig(
        num_hidden_layers=3,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        head_dim=8,
        output_router_logits=True,
        **LLAMA,
    )
    return hf.Qwen3MoeForCausalLM(config), text()


def dense_and_sparse() -> Any:
    """Layers that alternate between a dense and a sparse block: the period is two layers."""
    config = hf.Qwen3MoeConfig(
        num_hidden_layers=6,
        decoder_sparse_step=2,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        head_dim=8,
        **LLAMA,
    )
    return hf.Qwen3MoeForCausalLM(config), text()


def local_and_global() -> Any:
    """GPT-Neo: layers alternate between local and global attention."""
    config = hf.GPTNeoConfig(
        num_layers=4,
        attention_types=[[["global", "local"], 2]],
        window_size=4,
        hidden_size=32,
        num_heads=2,
        vocab_size=64,
        max_position_embeddings=32,
        **NO_TOKENS,
    )
    return hf.GPTNeoForCausalLM(config), text()


def hidden_states() -> Any:
    """A model whose loss reads the output of every layer."""
    model, batch = bert()
    model.config.output_hidden_states = True
    return model, batch


def loss(model: Any, batch: Any) -> torch.Tensor:
    output = model(**batch)
    if getattr(output, "hidden_states", None):
        return output.loss + sum(h.pow(2).mean() for h in output.hidden_states)
    return output.loss


# family -> iterations of the loops that must be found, in program order
FOUND: dict[Callable[[], Any], list[int]] = {
    gpt2: [4],
    bert: [4],
    vit: [4],
    resnet: [4],
    llama: [4],
    t5: [3, 3],
    whisper: [3, 3],
    mamba: [3],
    qwen3_moe: [3],
    dense_and_sparse: [3],
    local_and_global: [4],
    hidden_states: [4],
}
QUICK = {resnet}


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, id=f.__name__, marks=[] if f in QUICK else pytest.mark.matrix) for f in FOUND],
)
def test_rolled_and_stacked_equals_written_out(family: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, batch = family()
    model = model.double().train()
    batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    with Double():
        captured = capture(model, loss, batch)
    graph = recognise_masks(without_dead(captured.graph), captured.weights.tensors)
    rolled = roll(graph)
    assert [n.args[1] for n in rolled.nodes if n.op == ROLL] == FOUND[family]
    slim, stacks = stacked(rolled)
    values = {n: to_jax(t) for n, t in captured.weights.tensors.items()}
    leaves = [to_jax(t) for t in flatten(batch)[0]]
    with torch_numerics():
        want = gradients(graph, values, leaves, {})
        joined = stacks.join(values, jnp.stack)
        members = {s.name: s.members for s in stacks.rows}
        for form in (slim, with_remat(slim, "full")) if family in QUICK else (with_remat(slim, "full"),):
            (value, buffers), found = gradients(form, joined, leaves, members)
            compare(value, want[0][0], "loss", 0.0)
            compare_all(stacks.split(buffers), want[0][1], 0.0)
            # the exact gradient of a key's bias is zero: only the largest gradient says what is small
            largest = max(float(jnp.abs(g).max()) for g in want[1].values())
            compare_all(stacks.split(found), want[1], 1e-3 * largest)


def gradients(graph: Graph, values: Any, leaves: Any, stacks: Any) -> Any:
    program = Program(graph, stacks=stacks)
    names = tuple(i.name for i in graph.inputs if i.trainable and (stacks or i.name in connected(graph)))
    values = {**values, **{n: jnp.asarray(v) for n, v in program.large.items()}}

    def run(values: Any, leaves: Any) -> Any:
        (value, (_, buffers, _)), found = program.gradients(names)(values, leaves, step_key(0, 0))
        return (value, buffers), found

    return jax.jit(run)(values, leaves)


def compare_all(got: dict[str, Any], want: dict[str, Any], scale: float) -> None:
    assert set(want) <= set(got)
    for name, value in want.items():
        compare(got[name], value, name, scale)


def compare(got: Any, want: Any, name: str, scale: float) -> None:
    if jnp.issubdtype(want.dtype, jnp.integer):
        assert bool((got == want).all()), name
        return
    size = max(float(jnp.abs(want).max()), scale)
    far = float(jnp.abs(got - want).max())
    assert far <= 1e-12 * size, f"{name}: {far / size:.1e}"
