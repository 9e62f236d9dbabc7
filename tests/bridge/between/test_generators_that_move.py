"""Forward draws from Python's or numpy's generators what decides nothing, and the loop draws from them, too: in its
order, as in eager."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import detente
from tests.bridge.between.loops import World, batches, cross_entropy, eager, equal

OWN, NUMPYS, TWISTER = random.Random(3), np.random.default_rng(3), np.random.RandomState(3)

# What a layer drop of nothing draws, and what the loop draws from the same generator.
DRAWS: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
    "random": (random.random, lambda: random.sample(range(1000), 1)[0]),
    "uniform, twice": (lambda: random.uniform(0, 1) + random.random(), random.random),
    "numpy.random": (np.random.rand, lambda: float(np.random.permutation(1000)[0])),
    "numpy.random, thrice": (lambda: float(np.random.uniform(size=3).sum()), lambda: float(np.random.rand())),
    "a Random": (OWN.random, OWN.random),
    "a Generator": (NUMPYS.random, lambda: float(NUMPYS.random())),
    "a RandomState": (TWISTER.rand, lambda: float(TWISTER.rand())),
}


def seeded() -> None:
    random.seed(1)
    np.random.seed(1)
    OWN.seed(1)
    NUMPYS.bit_generator.state = np.random.default_rng(1).bit_generator.state
    TWISTER.seed(1)


class Drops(nn.Module):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.body, self.last, self.draw, self.rate = nn.Linear(6, 6), nn.Linear(6, 3), draw, -1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (self.training and self.draw() < self.rate):
            x = x + torch.tanh(self.body(x))
        return self.last(x)


@pytest.mark.parametrize("name", DRAWS)
def test_the_loop_draws_what_it_draws_in_eager(name: str) -> None:
    draw, other = DRAWS[name]

    def draws(world: World) -> list[float]:
        seeded()
        found = []
        for batch in batches(4):
            found += [float(other()), world.step(batch)]
        return [*found, float(other())]

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*draws from.*")
        equal(draws, build=lambda: Drops(draw))


def test_each_micro_batch_draws() -> None:
    found = []
    for bridge in (False, True):
        seeded()
        torch.manual_seed(0)
        model = Drops(random.random)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        if bridge:
            how = {"example_batch": batches(1)[0], "accumulate": 3, "cache": False, "certificate": "none"}
            detente.compile(model, cross_entropy, sgd, **how)(batches(1)[0])
        else:
            for _ in range(3):
                eager(model, cross_entropy, sgd)(batches(1)[0])
        found.append(random.random())
    assert found[0] == found[1]


def test_what_a_stored_program_draws(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = Drops(np.random.rand)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        step = detente.compile(model, cross_entropy, sgd, example_batch=batches(1)[0], certificate="none")
        seeded()
        step(batches(1)[0])
        found.append((step.programs[0].cached, float(np.random.rand())))
    assert found[0][1] == found[1][1] and [cached for cached, _ in found] == [False, True]


def test_what_draws_now_more_and_now_less_is_told() -> None:
    def shuffled() -> float:
        order = list(range(50))
        random.shuffle(order)  # throws away what does not fit
        return float(min(order))

    model = Drops(shuffled)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="forward draws from Python's random what decides nothing"):
        detente.compile(model, cross_entropy, sgd, example_batch=batches(1)[0], cache=False)
