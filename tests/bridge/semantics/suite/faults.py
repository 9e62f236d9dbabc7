"""What torch raises and XLA swallows: the step before is right, and this one raises, at the latest when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from suite.case import Case, Run
from suite.judge import raises
from suite.nets import normal


class Table(nn.Module):
    """A weight of five rows; ``read(weight, index)`` is the case."""

    def __init__(self, read: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(5, 4, seed=6))
        self.read = read

    def forward(self, index):
        return self.read(self.weight, index).pow(2).sum()


def _masked_write(weight, mask):
    y = weight * 1.0
    y[mask] = torch.arange(8.0, device=y.device).reshape(2, 4)
    return y


def _wide(weight, number):
    return weight * (torch.arange(5, device=number.device) // number)[:, None]


def _remainder(weight, number):
    return weight * (torch.arange(5, device=number.device) % number)[:, None]


IDS = torch.tensor([0, 4, 2])
ROW = torch.tensor([[0], [3], [1], [2], [0]])
MASK = torch.tensor([True, False, True, False, False])

# name, what torch says, function of weight and index, a good index, a bad one
FAULTS: tuple[tuple[str, str, Callable[[Any, Any], Any], torch.Tensor, torch.Tensor], ...] = (
    ("embedding out of range", "IndexError", lambda w, i: F.embedding(i, w), IDS, IDS + 1),
    ("embedding of a negative index", "IndexError", lambda w, i: F.embedding(i, w), IDS, IDS - 1),
    (
        "label out of range",
        "IndexError",
        F.cross_entropy,
        torch.tensor([0, 3, -100, 2, 1]),
        torch.tensor([0, 4, -100, 2, 1]),
    ),
    ("gather out of range", "RuntimeError", lambda w, i: w.gather(1, i), ROW, ROW + 1),
    ("index out of range", "IndexError", lambda w, i: w[i], torch.tensor([4, -5]), torch.tensor([5, 0])),
    ("index_select out of range", "IndexError", lambda w, i: w.index_select(0, i), IDS, IDS + 1),
    (
        "scatter out of range",
        "RuntimeError",
        lambda w, i: w.scatter(1, i, 0.0),
        ROW,
        ROW + 1,
    ),
    (
        "integer division by zero",
        "RuntimeError",
        _wide,
        torch.tensor([1, 2, 1, 2, 3]),
        torch.tensor([1, 0, 1, 2, 3]),
    ),
    (
        "integer remainder by zero",
        "RuntimeError",
        _remainder,
        torch.tensor([1, 2, 1, 2, 3]),
        torch.tensor([1, 0, 1, 2, 3]),
    ),
    (
        "write through a boolean mask of another count",
        "RuntimeError",
        _masked_write,
        MASK,
        torch.tensor([True, True, True, False, False]),
    ),
)

CASES = tuple(
    Case(
        name,
        "faults",
        "4.4" if "mask" in name else "list",
        error,
        (Run(lambda read=read: Table(read), lambda good=good, bad=bad: [good, bad]),),
        raises,
    )
    for name, error, read, good, bad in FAULTS
)
