"""Layers that the notes name: grouped transposed convolutions, GroupNorm as plain reductions, float64 in a float32
module, constants made in forward, the masks of transformers' models."""

from __future__ import annotations

import jax
import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.capture.capture import capture
from detente.bridge.graph import without_dead
from detente.bridge.lower.precision import x64
from detente.bridge.passes.masks import ATTENTION, recognise_masks
from detente.bridge.program.program import Program
from detente.bridge.random.keys import step_key

G = torch.Generator().manual_seed(0)
IMAGE = torch.randn(2, 4, 6, 6, generator=G)


def squares(model, batch):
    return model(batch).pow(2).sum()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2}], ids=str
)
def test_transposed_convolution_in_groups(groups, options, same_function):
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(4, 8, 3, groups=groups, **options)
    same_function(layer, squares, IMAGE, steps=1)


def test_group_norm_is_a_plain_reduction(same_function):
    layer = nn.GroupNorm(2, 4)
    same_function(layer, squares, IMAGE, steps=1)
    captured = capture(layer, squares, IMAGE)
    program = Program(captured.graph)
    values = {n: t.detach().numpy() for n, t in captured.weights.tensors.items()}
    run = program.gradients(program.connected)
    with x64():
        text = jax.jit(run).lower(values, [IMAGE.numpy()], step_key(0, 0)).as_text()
    assert "stablehlo.reduce" in text and "stablehlo.while" not in text


class Exact(nn.Module):
    """A float32 module that computes one part in float64, as losses with a large range do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        exact = y.double() / 3 + torch.linspace(0, 1, 4, dtype=torch.float64)
        return exact.sum().float(), [exact, torch.zeros(2, dtype=torch.float64), x.to(torch.float64).mean()]


def test_float64_that_is_asked_for_stays_float64():
    model, x = Exact(), IMAGE[0, 0, :, :4].clone()
    step = bridge.compile(
        model,
        lambda m, b: m(b),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=x,
        certificate="none",
    )
    _, expected = model(x)
    _, found = step(x)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype == torch.float64
        torch.testing.assert_close(mine.wait(), theirs.detach(), rtol=1e-6, atol=1e-7)
    # an element that float32 could not hold: x/3 has digits beyond the 24th bit
    assert bool((found[0].wait() != found[0].wait().float().double()).any())


class Constants(nn.Module):
    """torch.tensor, from numbers and from lists, as a factor, an index and a thing to write to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        scale = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=x.dtype)
        scale[0] += 3.0
        picked = y[:, torch.tensor([3, 0])]
        return (y * scale).sum() * torch.tensor(2.5, dtype=x.dtype) + picked.pow(2).sum()


def test_constants_made_in_forward_are_made_anew_in_every_step(same_function):
    same_function(Constants(), lambda m, b: m(b), IMAGE[0, 0, :, :4].clone(), steps=3)


def _tiny(kind):
    import transformers

    small = {"vocab_size": 61, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=61, n_positions=16, bos_token_id=0, eos_token_id=0
        )
        return transformers.GPT2LMHeadModel(config)
    if kind == "llama":
        config = transformers.LlamaConfig(**small, intermediate_size=64, num_key_value_heads=2)
        return transformers.LlamaForCausalLM(config)
    config = transformers.BertConfig(**small, intermediate_size=64, max_position_embeddings=16)
    return transformers.BertForMaskedLM(config)


@pytest.mark.parametrize(("kind", "causal"), [("gpt2", True), ("llama", True), ("bert", False)])
def test_the_masks_of_transformers_without_attention_mask_are_recognised(kind, causal):
    """transformers builds an explicit (B, 1, L, L) mask when it is traced; it folds to causal, or to nothing."""
    ids = torch.arange(24).reshape(2, 12) * 7 % 61
    captured = capture(
        _tiny(kind),
        lambda m, b: (
            m(input_ids=b, labels=b, use_cache=False).loss if causal else m(input_ids=b, labels=b).loss
        ),
        ids,
    )
    graph = recognise_masks(without_dead(captured.graph), captured.weights.tensors)
    attention = [node for node in graph.nodes if node.op == ATTENTION]
    assert len(attention) == 2
    for node in attention:
        given = dict(node.kwargs)
        assert len(node.args) <= 3 and given.get("attn_mask") is None
        assert bool(given.get("is_causal", False)) == causal


class Spells(nn.Module):
    """Connectionist temporal classification; ``lengths`` says how the lengths are given."""

    def __init__(self, lengths, reduction, normalised=True):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.lengths, self.reduction = nn.Linear(4, 5), lengths, reduction
        self.normalised = normalised

    def forward(self, batch):
        x, labels = batch
        logits = self.linear(x)
        logits = logits.log_softmax(-1) if self.normalised else logits
        sizes = [7, 6], [3, 2]
        if self.lengths == "tensor":
            sizes = tuple(torch.tensor(s) for s in sizes)
        return nn.functional.ctc_loss(logits, labels, *sizes, reduction=self.reduction, zero_infinity=True)


@pytest.mark.parametrize(
    ("lengths", "reduction", "layout", "normalised"),
    [
        ("list", "mean", "padded", True),
        ("tensor", "sum", "padded", True),
        ("tensor", "mean", "joined", True),
        ("list", "sum", "joined", False),
    ],
)
def test_ctc_loss_is_captured(lengths, reduction, layout, normalised, same_function):
    """torch itself refuses to trace it: the size of what it keeps for its backward pass depends on the lengths. Its
    gradient takes the scores for normalised ones, and is no derivative where they are not."""
    x = torch.randn(7, 2, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[1, 2, 2], [3, 4, 0]]) if layout == "padded" else torch.tensor([1, 2, 2, 3, 4])
    same_function(Spells(lengths, reduction, normalised), lambda m, b: m(b), (x, labels), steps=1)
