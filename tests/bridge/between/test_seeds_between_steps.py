"""``torch.manual_seed`` between two steps: eager draws from that seed, a compiled step does not, and says so once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import detente

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(5))


def told(between: Callable[[int], Any], rate: float = 0.5) -> int:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(rate) if rate else nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step = detente.compile(
            model,
            lambda m, x: m(x).square().mean(),
            optimizer,
            example_batch=X,
            seed=3,
            cache=False,
            quiet=True,
        )
        for i in range(6):
            between(i)
            float(step(X))
    return sum("was seeded between two steps" in str(one.message) for one in said)


def validates(i: int) -> None:
    if i == 3:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            torch.randn(3)
            torch.manual_seed(2)


def seeds_and_draws(i: int) -> None:
    torch.manual_seed(7)
    torch.randperm(9)


@pytest.mark.parametrize(
    "between", [lambda i: torch.manual_seed(0), lambda i: torch.random.manual_seed(i + 1), seeds_and_draws]
)
def test_a_seed_before_each_step_is_told_once(between: Any) -> None:
    assert told(between) == 1


@pytest.mark.parametrize(
    "between", [lambda i: None, lambda i: torch.randperm(9), validates, lambda i: i or torch.manual_seed(1)]
)
def test_what_else_a_loop_does_with_the_generator_is_not(between: Any) -> None:
    assert told(between) == 0


def test_a_step_that_draws_nothing_does_not_mind() -> None:
    assert told(lambda i: torch.manual_seed(0), rate=0.0) == 0
