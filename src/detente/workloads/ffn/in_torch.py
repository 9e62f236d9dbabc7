"""``ffn`` in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from detente.workloads.workload import Size

Tensors = dict[str, torch.Tensor]


class FeedForward(nn.Module):
    """x (..., hidden) to (..., hidden) through ``inner``."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(hidden, inner)
        self.c_proj = nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(nn.functional.gelu(self.c_fc(x), approximate="tanh"))


def build(size: Size) -> torch.nn.Module:
    return FeedForward(size["hidden"], size["inner"])


def loss(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """Mean squared error against ``target``."""
    y = module(batch["x"])
    return (y - batch["target"]).square().mean(), {"y": y}
