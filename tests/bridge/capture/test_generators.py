"""A number of Python's or numpy's that decides is refused, however seldom it does; one that decides nothing is not."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from random import random as drawn
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.capture.generators import Generators
from detente.bridge.live.sources import Sources

X = torch.ones(4, 3)
OWN = np.random.default_rng(0)
TWISTER = np.random.RandomState(0)
LISTS = random.Random(0)
SYSTEM = random.SystemRandom()

DECIDES: dict[str, Callable[[], float]] = {
    "half": lambda: 2.0 if drawn() < 0.5 else 1.0,
    "seldom": lambda: 2.0 if drawn() < 1e-4 else 1.0,
    "mostly": lambda: 1.0 if drawn() < 0.9999 else 2.0,
    "uniform": lambda: 2.0 if random.uniform(0, 1) > 0.999 else 1.0,
    "of an own one": lambda: 2.0 if LISTS.random() < 1e-4 else 1.0,
    "numpy": lambda: 2.0 if np.random.rand() < 1e-4 else 1.0,
    "numpy's own twister": lambda: 2.0 if TWISTER.rand() > 0.9999 else 1.0,
    "numpy's generator": lambda: 2.0 if OWN.random() < 0.5 else 1.0,
    "mixup": lambda: float(np.random.beta(0.2, 0.2)),
    "choice": lambda: random.choice([1.0, 2.0, 1.0]),
    "the system's": lambda: 2.0 if SYSTEM.random() < 1e-4 else 1.0,
    "the system's choice": lambda: SYSTEM.choice([1.0, 2.0, 1.0]),
    "secrets": lambda: secrets.choice([1.0, 2.0]),
    "normal": lambda: 2.0 if np.random.randn() > 0 else 1.0,
}
DECIDES_NOTHING: dict[str, Callable[[], float]] = {
    "layer drop of nothing": lambda: 2.0 if drawn() < 0.0 else 1.0,
    "more than nothing": lambda: 1.0 if np.random.uniform(0, 1) > 0.0 else 2.0,
    "the system's, of nothing": lambda: 2.0 if SYSTEM.random() <= 0.0 else 1.0,
    "held and not asked": lambda: 1.0 if SYSTEM else 2.0,
    "unused": lambda: 0.0 * len(str(drawn())) + 1.0,
}


def compiled(factor: Callable[[], float]) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return model(batch).square().mean() * factor()

    return bridge.compile(model, loss, sgd, example_batch=X, cache=False, certificate="none")


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3))])
@pytest.mark.parametrize("how", DECIDES)
def test_a_draw_that_decides_is_refused(how: str, seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    before = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()
    with pytest.raises(bridge.Refused, match=r"\[generator\] the step draws from"):
        compiled(DECIDES[how])
    assert random.getstate() == before[0]
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before[1]


@pytest.mark.parametrize("how", DECIDES_NOTHING)
def test_a_draw_that_decides_nothing_is_taken(how: str) -> None:
    assert float(compiled(DECIDES_NOTHING[how])(X)) > 0


def test_the_places_are_at_both_ends() -> None:
    generators = Generators(Sources())
    with generators.elsewhere(0):
        low = random.random(), np.random.rand()
    with generators.elsewhere(1):
        high = random.random(), np.random.rand()
    assert all(0 < one < 1e-7 for one in low) and all(1 - one < 1e-7 for one in high)
