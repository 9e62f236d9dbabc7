"""Layers that ports get wrong, and layers that they get right: whole layers with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from suite.case import Case, Observed
from suite.judge import holds, same
from suite.nets import layer, model, normal


def no_loop(theirs: Sequence[Observed], ours: Sequence[Observed]) -> str:
    """The program has no loop: the layer is a plain reduction."""
    text = ours[0].program
    found = [word for word in ("while[", "scan[") if word in text]
    return f"the program has a {found[0][:-1]}" if found else ""


class Identity(nn.Module):
    """A weight in front of a function, so that there is a gradient."""

    def __init__(self, function: Any, shape: Sequence[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(*shape, seed=3))
        self.function = function

    def forward(self, x):
        return self.function(self.weight, x)


def _function(function: Any, shape: Sequence[int], batch: Any) -> Any:
    return layer(lambda: Identity(function, shape), batch)


def _bag(weight, ids):
    return F.embedding_bag(ids, weight, torch.tensor([0, 3], device=ids.device), mode="mean")


def _ctc(weight, labels):
    logits = F.log_softmax(weight, -1)
    return F.ctc_loss(logits, labels, [7, 6], [3, 2], reduction="none", zero_infinity=True)


def _gqa(weight, x):
    query, key = x * weight, x[:, :2] * 0.5
    return F.scaled_dot_product_attention(query, key, key * weight[:2], enable_gqa=True)


class GPT2(nn.Module):
    """transformers' own, two layers, called without an attention mask."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=2,
            n_embd=32,
            n_head=2,
            vocab_size=61,
            n_positions=16,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.inner = transformers.GPT2LMHeadModel(config).train()

    def forward(self, ids):
        return self.inner(input_ids=ids, labels=ids).loss


def _transposed(groups: int) -> Any:
    return lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=groups)


IMAGE = normal(2, 4, 6, 6, seed=1)
WORDS = normal(2, 5, 8, seed=2)
LOGITS = (6, 5)
LABELS = torch.tensor([0, 4, -100, 2, 1, 3])

CASES = tuple(
    Case(name, "layers", "4.2", torchs, runs, **{"judge": same, **more})
    for name, torchs, runs, more in (
        ("ConvTranspose2d, groups=2", "each group by itself", layer(_transposed(2), IMAGE), {}),
        ("ConvTranspose2d", "", layer(_transposed(1), IMAGE), {}),
        (
            "GroupNorm",
            "one reduction; the program needs no loop",
            layer(lambda: nn.GroupNorm(2, 4), IMAGE),
            {"judge": holds(values=same, program=no_loop), "program": True},
        ),
        ("LSTM", "", layer(lambda: nn.LSTM(8, 6, batch_first=True), WORDS, lambda m, x: m(x)[0]), {}),
        (
            "TransformerEncoderLayer",
            "",
            layer(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), WORDS),
            {},
        ),
        (
            "interpolate, bilinear",
            "",
            _function(lambda w, x: F.interpolate(x * w, scale_factor=1.5, mode="bilinear"), (4, 6, 6), IMAGE),
            {},
        ),
        (
            "adaptive average pool",
            "",
            _function(lambda w, x: F.adaptive_avg_pool2d(x * w, (4, 3)), (4, 6, 6), IMAGE),
            {},
        ),
        (
            "adaptive max pool",
            "",
            _function(lambda w, x: F.adaptive_max_pool2d(x * w, (4, 3)), (4, 6, 6), IMAGE),
            {},
        ),
        (
            "max pool with dilation",
            "",
            _function(lambda w, x: F.max_pool2d(x * w, 2, stride=1, dilation=2), (4, 6, 6), IMAGE),
            {},
        ),
        ("embedding_bag, mean", "", _function(_bag, (7, 3), torch.tensor([0, 6, 2, 2, 5])), {}),
        (
            "cross entropy with ignore_index",
            "",
            _function(F.cross_entropy, LOGITS, LABELS),
            {},
        ),
        (
            "cross entropy with label smoothing",
            "",
            _function(lambda w, y: F.cross_entropy(w, y, label_smoothing=0.2), LOGITS, LABELS.clamp(min=0)),
            {},
        ),
        (
            "attention with grouped queries",
            "",
            _function(_gqa, (4, 5, 8), normal(2, 4, 5, 8, seed=4)),
            {},
        ),
        ("ctc_loss", "", _function(_ctc, (7, 2, 5), torch.tensor([[1, 2, 2], [3, 4, 0]])), {}),
        ("pdist", "", _function(lambda w, x: F.pdist(x * w), (6,), normal(4, 6)), {}),
        (
            "transformers' GPT-2 without attention_mask",
            "",
            model(GPT2, [torch.arange(24).reshape(2, 12) * 7 % 61]),
            {},
        ),
    )
)
