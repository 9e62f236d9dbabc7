"""Honest models of a user's own in torch that a rule once stumbled over."""

from __future__ import annotations

from typing import Any

import torch


def zero_head(batch: int = 16) -> Any:
    """The last layer begins as zeros (adaLN-Zero, muP, the heads of big_vision): every batch has the loss ln 10."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 10))
    last: Any = model[2]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)

    def loss(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    return model, loss, {"x": torch.randn(batch, 32), "y": torch.randint(0, 10, (batch,))}


class Masked(torch.nn.Module):
    """Three of ten classes are not allowed (masked actions, constrained decoding): their logits are minus infinity."""

    forbidden: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 10))
        self.register_buffer("forbidden", torch.arange(10) >= 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).masked_fill(self.forbidden, float("-inf"))


def masked(batch: int = 16) -> Any:
    def loss(model: Any, batch: Any) -> Any:
        logits = model(batch["x"])
        return torch.nn.functional.cross_entropy(logits, batch["y"]), {"logits": logits}

    return Masked(), loss, {"x": torch.randn(batch, 32), "y": torch.randint(0, 7, (batch,))}


class Probe(torch.nn.Module):
    """A head on a backbone that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        layers = [part for _ in range(12) for part in (torch.nn.Linear(64, 64), torch.nn.GELU())]
        self.backbone = torch.nn.Sequential(*layers).requires_grad_(False)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def frozen(batch: int = 64) -> Any:
    def loss(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    return Probe(), loss, {"x": 4 * torch.randn(batch, 64), "y": torch.randint(0, 10, (batch,))}
