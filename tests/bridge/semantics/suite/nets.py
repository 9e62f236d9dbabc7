"""The small modules that cases are made of, with seeded weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from suite.case import Run


class Net(nn.Module):
    """Linear layers of width 4, the second one frozen, the third unread; ``body(self, batch)`` is the case."""

    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.frozen, self.unread = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.body = body

    def forward(self, batch: Any) -> Any:
        return self.body(self, batch)


class One(nn.Module):
    """One weight, 1.0, and the tensors that ``function`` makes of the batch, to be looked at."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, batch: Any) -> Any:
        results = self.function(*batch)
        return self.weight * 1.0, list(results) if isinstance(results, tuple | list) else [results]


class Around(nn.Module):
    """A layer with weights; the loss weighs every element of its result differently."""

    def __init__(self, layer: Callable[[], nn.Module], call: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.call = layer(), call

    def forward(self, batch: Any) -> Any:
        y = self.layer(batch) if self.call is None else self.call(self.layer, batch)
        return weighed(y), [y]


def weighed(y: torch.Tensor) -> torch.Tensor:
    """A sum whose gradient is another number for every element."""
    ramp = torch.arange(1, y.numel() + 1, dtype=y.dtype, device=y.device).reshape(y.shape)
    return (y * ramp).sum() / y.numel() + y.pow(2).sum()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Seeded normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


def body(function: Callable[[Any, Any], Any], batch: Any = X, steps: int = 1) -> tuple[Run, ...]:
    """``Net`` with this body, ``steps`` times on this batch."""
    return (Run(lambda: Net(function), lambda: [batch] * steps),)


def values(function: Callable[..., Any], *tensors: torch.Tensor) -> tuple[Run, ...]:
    """``function(*tensors)``, looked at."""
    return (Run(lambda: One(function), lambda: [tensors]),)


def layer(
    make: Callable[[], nn.Module], batch: Any, call: Callable[[Any, Any], Any] | None = None, steps: int = 1
) -> tuple[Run, ...]:
    """A layer of its own, in training."""
    return (Run(lambda: Around(make, call), lambda: [batch] * steps),)


def model(make: Callable[[], nn.Module], batches: Sequence[Any], seed: int = 0) -> tuple[Run, ...]:
    """A module whose forward returns the loss."""
    return (Run(make, lambda: batches, seed),)
