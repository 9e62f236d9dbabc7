"""``ffn`` in PyTorch, with the activation that ``GPT2LMHeadModel`` of ``transformers`` has in this place, written out:
importing it takes three seconds of every process.

``nn.functional.gelu(approximate="tanh")`` would be the same in fp32, but torch_xla (2.9) keeps the square root of
2/pi of its own lowering of that operator in float32, also in a float64 program: the gradient is then off by 1e-8.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from detente.workloads.workload import Size

Tensors = dict[str, torch.Tensor]


class TanhGelu(nn.Module):
    """GELU by its tanh form (Hendrycks and Gimpel, arXiv:1606.08415), an operator at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class FeedForward(nn.Module):
    """x (..., hidden) to (..., hidden) through ``inner``."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(hidden, inner)
        self.act = TanhGelu()
        self.c_proj = nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


def build(size: Size) -> torch.nn.Module:
    return FeedForward(size["hidden"], size["inner"])


def loss(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """Mean squared error against ``target``."""
    y = module(batch["x"])
    return (y - batch["target"]).square().mean(), {"y": y}
