"""What loss and forward keep in Python from one step to the next is eager's in every step, or refused by name."""

from __future__ import annotations

import itertools
import random
import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from detente import bridge
from tests.bridge.between.loops import World, batches, cross_entropy, equal, run


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


Loss = Callable[[Any, Any], torch.Tensor]


def steps(world: World) -> list[float]:
    return [world.step(batch) for batch in batches(4)]


def a_variable_that_counts() -> Loss:
    count = 0

    def loss(model: Any, batch: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        return cross_entropy(model, batch) * (1 + 0.1 * count)

    return loss


def an_entry_that_was_not_there() -> Loss:
    counts: dict[str, int] = {}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        counts["calls"] = counts.get("calls", 0) + 1
        return cross_entropy(model, batch) * counts["calls"]

    return loss


def a_cache_that_is_filled_once() -> Loss:
    cache: dict[int, torch.Tensor] = {}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        if 3 not in cache:
            cache[3] = torch.linspace(0.5, 1.5, 3)
        return nn.functional.cross_entropy(model(batch["x"]) * cache[3], batch["y"])

    return loss


def what_was_logged() -> Loss:
    seen: dict[str, Any] = {}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        value = cross_entropy(model, batch)
        seen["loss"], seen["at"] = value.detach(), time.time()
        return value

    return loss


@pytest.mark.parametrize(
    "made",
    [a_variable_that_counts, an_entry_that_was_not_there, a_cache_that_is_filled_once, what_was_logged],
    ids=lambda made: made.__name__,
)
def test_it_is_what_it_is_in_eager(made: Callable[[], Loss]) -> None:
    equal(steps, loss=lambda world: made(), certificate="none")


def a_running_mean_in_a_dictionary() -> Loss:
    kept = {"mean": torch.zeros(())}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        value = cross_entropy(model, batch)
        kept["mean"] = 0.9 * kept["mean"] + 0.1 * value.detach()
        return value / (1 + kept["mean"])

    return loss


def a_running_mean_that_was_not_there() -> Loss:
    kept: dict[str, torch.Tensor] = {}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        value = cross_entropy(model, batch)
        kept["mean"] = 0.9 * kept.get("mean", torch.zeros(())) + 0.1 * value.detach()
        return value / (1 + kept["mean"])

    return loss


def a_running_mean_in_a_variable() -> Loss:
    mean = torch.zeros(())

    def loss(model: Any, batch: Any) -> torch.Tensor:
        nonlocal mean
        value = cross_entropy(model, batch)
        mean = 0.9 * mean + 0.1 * value.detach()
        return value / (1 + mean)

    return loss


class Criterion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * value.detach()
        return value / (1 + self.mean)


def a_running_mean_in_a_criterion() -> Loss:
    criterion = Criterion()
    return lambda model, batch: criterion(cross_entropy(model, batch))


class Running:
    def __init__(self) -> None:
        self.mean = 0.0

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        value = cross_entropy(model, batch)
        self.mean = 0.9 * self.mean + 0.1 * value.item()
        return value / (1 + self.mean)


def an_array_that_counts() -> Loss:
    calls = np.zeros(1)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        calls[0] += 1
        return cross_entropy(model, batch) * float(calls[0])

    return loss


def a_list_that_is_used_up() -> Loss:
    factors = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    return lambda model, batch: cross_entropy(model, batch) * factors.pop()


def a_generator() -> Loss:
    factors = (0.9**i for i in range(99))
    return lambda model, batch: cross_entropy(model, batch) * next(factors)


def a_cycle() -> Loss:
    factors = itertools.cycle([1.0, 2.0])
    return lambda model, batch: cross_entropy(model, batch) * next(factors)


def the_clock() -> Loss:
    began = time.perf_counter()
    return lambda model, batch: cross_entropy(model, batch) * (1 + time.perf_counter() - began)


def chance_without_a_seed() -> Loss:
    return lambda model, batch: cross_entropy(model, batch) * (1 + np.random.default_rng().random())


def chance_of_pythons_own() -> Loss:
    return lambda model, batch: cross_entropy(model, batch) * (1 + random.Random().random())


def secrets_of_the_system() -> Loss:
    return lambda model, batch: cross_entropy(model, batch) * (1 + secrets.randbelow(10**9))


@pytest.mark.parametrize(
    "made",
    [
        a_running_mean_in_a_dictionary, a_running_mean_that_was_not_there, a_running_mean_in_a_variable,
        a_running_mean_in_a_criterion, Running, an_array_that_counts, a_list_that_is_used_up, a_generator, a_cycle,
        the_clock, chance_without_a_seed, chance_of_pythons_own, secrets_of_the_system,
    ],
    ids=lambda made: made.__name__,
)  # fmt: skip
def test_what_no_program_repeats_is_refused(made: Callable[[], Any]) -> None:
    with pytest.raises(bridge.Refused) as refused:
        run(steps, bridge=True, loss=lambda world: made(), certificate="none")
    assert {reason.code for reason in refused.value.reasons} <= {"held-tensor", "generator"}
