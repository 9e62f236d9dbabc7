"""``gemm`` in PyTorch."""

from __future__ import annotations

import torch

from detente.workloads.workload import Size

Tensors = dict[str, torch.Tensor]


class Gemm(torch.nn.Module):
    """y = x @ weight with x (m, k), weight (k, n)."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(k, n) / k**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def build(size: Size) -> torch.nn.Module:
    return Gemm(size["k"], size["n"])


def loss(module: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
    """sum(y * g) / g.numel(), so that the product is pulled back by g and nothing else costs a product."""
    y, g = module(batch["x"]), batch["g"]
    return (y * g).sum() / g.numel(), {"y": y}
