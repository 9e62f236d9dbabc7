"""A loop's step begins with ``zero_grad()`` and so does a compiled one: what somebody's ``backward()`` left is neither
added to nor applied."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import detente
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def norms(world: World) -> list[float]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="gradients are asked for.*")  # (and none is what is wanted)
        grads = [p.grad for p in world.model.parameters()]
    return [float(g.norm()) for g in grads if g is not None]


def logs_norms(world: World) -> list[float]:
    found = []
    for batch in batches(4):
        cross_entropy(world.model, batch).backward()
        found += [*norms(world), world.step(batch)]
    return found


def steps_behind_it(world: World) -> list[float]:
    found = []
    for i, batch in enumerate(batches(5)):
        if i == 2:
            cross_entropy(world.model, batch).backward()
        found.append(world.step(batch))
        world.optimizer.step()
        assert not norms(world)
    return found


def sets_one(world: World) -> list[float]:
    found = []
    for batch in batches(4):
        found.append(world.step(batch))
        world.model.last.bias.grad = torch.ones(3)
        found.append(world.step(batch))
        world.optimizer.step()
    return found


def goes_back_late(world: World) -> list[float]:
    """The graph is made before a step, and backward() is called behind it."""
    found = []
    for batch in batches(4):
        penalty = world.model.last.bias.sum()  # whose backward reads no value
        found.append(world.step(batch))
        penalty.backward()
        found += [*norms(world), world.step(batch)]
        world.optimizer.step()
    return found


@pytest.mark.parametrize(
    "loop", [logs_norms, steps_behind_it, sets_one, goes_back_late], ids=lambda f: f.__name__
)
def test_they_are_gone(loop) -> None:
    # (one that moves by its momentum alone would move behind the step, in eager too)
    equal(loop, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))


def test_those_of_before_are_gone() -> None:
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    cross_entropy(model, batches(1)[0]).backward()
    step = detente.compile(
        model, cross_entropy, sgd, example_batch=batches(1)[0], certificate="none", cache=False
    )
    step(batches(1)[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="gradients are asked for.*")
        assert all(p.grad is None for p in model.parameters())
