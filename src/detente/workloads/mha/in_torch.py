"""``mha`` in PyTorch, attention by scaled_dot_product_attention."""

from __future__ import annotations

import torch
from torch import nn

from detente.workloads.workload import Size

Tensors = dict[str, torch.Tensor]


class Attention(nn.Module):
    """Causal self-attention on x (batch, sequence, hidden); one projection to query, key and value."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(hidden, 3 * hidden)
        self.c_proj = nn.Linear(hidden, hidden)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, h = x.shape
        q, k, v = (
            part.view(b, t, self.heads, h // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(h, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(b, t, h))


def build(size: Size) -> torch.nn.Module:
    return Attention(size["hidden"], size["heads"])


def loss(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """Mean squared error against ``target``."""
    y = module(batch["x"])
    return (y - batch["target"]).square().mean(), {"y": y}
