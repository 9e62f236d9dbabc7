"""A model of your own for the referee: a function that returns module, loss, batch and optimizer.

detente compare examples/own_workload.py:build --stacks torch-eager,detente
detente bridge check examples/own_workload.py:build
"""

from __future__ import annotations

import torch
from torch import nn


class Gated(nn.Module):
    """A gated feed-forward block with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def build():
    """Called under a seed of the referee's: the same weights in every process, several batches."""
    module = nn.Sequential(nn.Linear(16, 32), Gated(32), Gated(32), nn.Linear(32, 4))
    batch = {"x": torch.randn(32, 16), "target": torch.randn(32, 4)}

    def loss(module, batch):
        y = module(batch["x"])
        return nn.functional.mse_loss(y, batch["target"]), {"y": y}

    return module, loss, batch, torch.optim.Adam(module.parameters(), lr=1e-3)
