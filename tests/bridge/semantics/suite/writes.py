"""Writes in place: through every kind of view, into buffers, through masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from suite.case import Case
from suite.judge import same
from suite.nets import layer, model, normal, weighed


class Writer(nn.Module):
    """Writes into the result of a layer, which carries a gradient, or into a copy that does not (``plain``)."""

    def __init__(self, write: Callable[[torch.Tensor], Any], plain: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6)
        self.write, self.plain = write, plain

    def forward(self, x):
        y = self.linear(x)
        held = y.detach().clone() if self.plain else y
        self.write(held)
        return weighed(y * held if self.plain else held), [held]


def _base_after_view(y: torch.Tensor) -> None:
    view = y.view(24)
    y.mul_(2)
    view[3].add_(1)


WRITES: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "itself": ("4.2", lambda y: y.mul_(2)),
    "x.view(-1)[0] = 7": ("4.2", lambda y: y.view(-1)[0].fill_(7)),
    "x.t()[1].mul_": ("4.2", lambda y: y.t()[1].mul_(3)),
    "transpose": ("4.2", lambda y: y.transpose(0, 1)[2].add_(1)),
    "diagonal": ("4.2", lambda y: y.diagonal().zero_()),
    "unfold": ("4.2", lambda y: y.unfold(1, 2, 2)[:, 0].mul_(5)),
    "a view sees a later write to its base": ("4.2", _base_after_view),
    "narrow": ("4.4", lambda y: y.narrow(0, 1, 2).sub_(4)),
    "index": ("4.4", lambda y: y.__setitem__((slice(None), torch.tensor([0, 2], device=y.device)), 1.5)),
    "masked_fill_": ("4.4", lambda y: y.masked_fill_(y > 0, 0.25)),
    "boolean mask, one value": ("4.4", lambda y: y.__setitem__(y > 0, 0.5)),
    "copy_ between slices": ("4.4", lambda y: y[1:3].copy_(y[0:2].clone())),
    "index_add_": (
        "4.4",
        lambda y: y.index_add_(0, torch.tensor([0, 0, 3], device=y.device), torch.ones_like(y[:3])),
    ),
}
# torch forbids these on a tensor that carries a gradient
PLAIN: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "chunk": ("4.2", lambda y: y.chunk(2, dim=1)[1].add_(1)),
    "select of split": ("4.4", lambda y: y.split(3, dim=1)[0].select(0, 2).exp_()),
}


class Buffers(nn.Module):
    """Written in place, rebound, counted in integers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(4, 6))

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * y.mean(0))
            self.steps += 1
            self.cache[1:3].copy_(y[:2])
        return weighed(y - self.mean) + self.cache.sum() * self.steps


def _evaluated() -> nn.Module:
    layer = nn.BatchNorm1d(6)
    layer.running_mean.copy_(torch.linspace(-1, 1, 6))
    layer.running_var.copy_(torch.linspace(0.5, 2, 6))
    return layer.eval()


X = normal(4, 6)
IMAGE = normal(4, 3, 5, 5, seed=1)

CASES = (
    *(
        Case(
            f"write: {name}",
            "writes",
            source,
            "the base sees it, and so does the gradient",
            model(lambda write=write: Writer(write, False), [X]),
            same,
        )
        for name, (source, write) in WRITES.items()
    ),
    *(
        Case(
            f"write: {name}",
            "writes",
            source,
            "the base sees it",
            model(lambda write=write: Writer(write, True), [X]),
            same,
        )
        for name, (source, write) in PLAIN.items()
    ),
    Case(
        "BatchNorm running statistics",
        "writes",
        "4.2, 4.4",
        "move in every step of training",
        layer(lambda: nn.BatchNorm2d(3, momentum=0.3), IMAGE, steps=3),
        same,
    ),
    Case(
        "BatchNorm in eval",
        "writes",
        "4.2",
        "uses them and leaves them",
        layer(_evaluated, X, steps=2),
        same,
    ),
    Case(
        "buffers written and counted in forward",
        "writes",
        "4.4",
        "every write is there in the next step",
        model(Buffers, [X] * 3),
        same,
    ),
)
