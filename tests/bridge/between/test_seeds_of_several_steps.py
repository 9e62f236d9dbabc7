"""Steps that are compiled without a seed draw other numbers each, the same whenever torch's generator is seeded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import detente

X = torch.ones(4, 3)


def noisy(model: Any, x: torch.Tensor) -> Any:
    noise = torch.randn(4, 3)
    return model(x + noise).square().mean(), noise


def drawn(share: Any = None, model: nn.Module | None = None, **options: Any) -> tuple[list[float], Any]:
    model = nn.Linear(3, 3) if model is None else model
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(
        model,
        noisy,
        sgd,
        example_batch=X,
        cache=False,
        certificate="none",
        quiet=True,
        share=share,
        **options,
    )
    return step(X)[1].flatten().tolist(), step


def test_each_draws_others_and_a_seed_repeats_them_all() -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        model = nn.Linear(3, 3)
        first, one = drawn(model=model)
        second, _ = drawn(share=one, model=model)
        third, _ = drawn()
        runs.append((first, second, third))
    assert runs[0] == runs[1]
    first, second, third = runs[0]
    assert first not in (second, third) and second != third
    assert first == drawn(seed=5)[0]  # the generator's own seed is that of the first


def test_torchs_generator_stays_where_it_is() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3).tolist()
    torch.manual_seed(5)
    model = nn.Linear(3, 3)
    torch.manual_seed(5)
    drawn(model=model), drawn(model=model)
    assert torch.rand(3).tolist() == wanted


def test_a_seed_for_a_while_is_none() -> None:
    torch.manual_seed(5)
    model = nn.Linear(3, 3)
    first, _ = drawn(model=model)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        drawn(model=model)
    second, _ = drawn(model=model)
    assert second != first


def test_a_step_that_is_refused_takes_no_seed() -> None:
    torch.manual_seed(5)
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="no such form"):
        drawn(model=model, form="no such form")
    assert drawn(model=model)[0] == drawn(model=model, seed=5)[0]
