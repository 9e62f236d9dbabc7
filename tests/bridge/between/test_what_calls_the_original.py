"""A certificate of what a copy would compute with the original: closures, globals, hooks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import detente
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal


class Lambda(Net):
    """As user code has it: an attribute that calls the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.head = lambda x: self.last(x)  # noqa: PLW0108  (a bound method is copied; this is not)
        self.counted = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counted += 1
        return super().forward(x) + self.head(torch.relu(self.first(x)))


def steps(world: World) -> list[float]:
    return [world.step(batch) for batch in batches(4)]


def test_an_attribute_that_calls_the_module() -> None:
    world = equal(steps, build=Lambda)
    assert world.model.counted == 4


def test_a_loss_that_names_the_model() -> None:
    equal(steps, loss=lambda world: lambda m, b: cross_entropy(world.model, b))


@pytest.mark.parametrize("detached", [False, True], ids=["trained", "detached"])
def test_a_loss_that_holds_a_parameter(detached: bool) -> None:
    def loss(world: World) -> Any:
        weight, mean = world.model.last.weight, world.model.norm.running_mean
        held = weight.detach if detached else lambda: weight
        return lambda m, b: cross_entropy(m, b) + (held().square().sum() * m.last.bias.sum()) + mean.sum()

    equal(steps, loss=loss)


def test_an_optimizer_with_a_wrapped_step() -> None:
    """A scheduler replaces ``optimizer.step`` by a function that counts."""

    def loop(world: World) -> list[float]:
        scheduler = torch.optim.lr_scheduler.StepLR(world.optimizer, 2, 0.1)
        losses = []
        for batch in batches(4):
            losses.append(world.step(batch))
            scheduler.step()
        return losses

    equal(loop, build=Lambda)


class Locked(Lambda):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_module_that_cannot_be_copied() -> None:
    equal(steps, build=Locked)


def test_nothing_is_left_of_the_run() -> None:
    """Aliases, versions, gradients, classes, the optimizer's objects: as before the certificate."""
    torch.manual_seed(0)
    model = Lambda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    given = batches(4)
    step = detente.compile(model, cross_entropy, optimizer, example_batch=given[0], seed=3, cache=False)
    float(step(given[0]))
    parameter = model.last.weight
    address = torch.Tensor.data_ptr(parameter.detach())
    groups = optimizer.param_groups
    version = parameter._version
    certificate = step.settled()
    assert certificate.ok and certificate.reference.startswith("torch eager in float64")
    assert optimizer.param_groups is groups and groups[0]["params"][0] is next(model.parameters())
    assert parameter._version == version and model.last.weight is parameter and parameter.grad is None
    step.sync_to_torch()
    assert parameter.detach().data_ptr() == address
    assert model.counted == 1
