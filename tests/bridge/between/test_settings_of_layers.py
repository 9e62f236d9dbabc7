"""A setting of a torch layer that a loop moves counts, also where the capture runs a method of ours in the place of the
layer's (statistics that torch.export cannot follow), and where the layer is one of torch.ao's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import nn

from tests.bridge.between.loops import World, batches, cross_entropy, equal, stepping

BATCH, INSTANCE = nn.BatchNorm1d, nn.InstanceNorm1d


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


class Middle(nn.Module):
    """A norm between two layers; an instance norm has rows of four."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), norm, nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.norm(x.view(-1, 4, 4)).flatten(1) if isinstance(self.norm, INSTANCE) else self.norm(x)
        return self.last(torch.relu(x))


@pytest.mark.parametrize(
    ("norm", "name", "value"),
    [
        (lambda: BATCH(16, momentum=None), "momentum", 0.3),
        (lambda: BATCH(16, momentum=None), "eps", 0.5),
        (lambda: INSTANCE(4, track_running_stats=True), "momentum", 0.5),
        (lambda: INSTANCE(4, track_running_stats=True), "eps", 0.5),
    ],
)
@pytest.mark.parametrize("certificate", ["full", "none"])
def test_of_a_norm_whose_statistics_are_written_out(
    norm: Callable[[], nn.Module], name: str, value: float, certificate: str
) -> None:
    def loop(world: World) -> list[float]:
        return stepping(world, lambda i: setattr(world.model.norm, name, value) if i == 3 else None, 6)

    equal(loop, build=lambda: Middle(norm()), optimizer=sgd, certificate=certificate)


class Observed(nn.Module):
    """What torch.ao's observer has seen scales the result."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.seen = nn.Linear(6, 3), torch.ao.quantization.MovingAverageMinMaxObserver()
        self.seen(torch.linspace(-1.0, 1.0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(x)
        self.seen(y.detach())
        return y * (self.seen.max_val - self.seen.min_val).detach()


def test_of_an_observer() -> None:
    def loop(world: World) -> list[float]:
        return stepping(
            world, lambda i: setattr(world.model.seen, "averaging_constant", 0.5) if i == 3 else None, 6
        )

    equal(loop, build=Observed, optimizer=sgd, certificate="none")


SAID: ContextVar[float] = ContextVar("SAID", default=1.0)


def test_a_context_variable_with_a_default_is_put_back_as_that() -> None:
    """It was made None, which the next to read it met in the place of its default."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        SAID.set(said := SAID.get())
        return cross_entropy(model, batch) * said

    world = equal(
        lambda world: stepping(world, lambda i: None, 4), build=lambda: nn.Linear(6, 3), loss=lambda w: loss
    )
    assert len(world.more["compiled"].programs) == 1


def test_a_module_that_torch_export_made_is_certified() -> None:
    """What torch.export left in front of it keeps a context variable, of which nobody had set the default."""

    def build() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(nn.Linear(6, 3), (batches()[0]["x"],)).module()

    world = equal(lambda world: stepping(world, lambda i: None, 3), build=build)
    assert world.more["compiled"].certificate.ok
