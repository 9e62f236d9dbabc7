"""``ffn`` in PyTorch, with the activation module that ``GPT2LMHeadModel`` of ``transformers`` has in this place.

``nn.functional.gelu(approximate="tanh")`` would be the same in fp32, but torch_xla (2.9) keeps the square root of
2/pi of its own lowering of that operator in float32, also in a float64 program: the gradient is then off by 1e-8.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.activations import NewGELUActivation

from detente.workloads.workload import Size

Tensors = dict[str, torch.Tensor]


class FeedForward(nn.Module):
    """x (..., hidden) to (..., hidden) through ``inner``."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(hidden, inner)
        self.act = NewGELUActivation()
        self.c_proj = nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


def build(size: Size) -> torch.nn.Module:
    return FeedForward(size["hidden"], size["inner"])


def loss(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """Mean squared error against ``target``."""
    y = module(batch["x"])
    return (y - batch["target"]).square().mean(), {"y": y}
