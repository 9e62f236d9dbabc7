"""Values lie in many places: partials, classes, modules of settings, queues, sets, slots. Each may move in a loop."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
import warnings
from collections import UserDict, deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from detente import bridge
from tests.bridge.between import settings
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal, run
from tests.bridge.between.test_further_loops import Masked


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


def half(change: Any, count: int = 4) -> Any:
    """A loop that calls ``change(world, value)`` before each step: 0.0 for the first half, then 1.0."""

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(count)):
            change(world, float(i >= count // 2))
            losses.append(world.step(batch))
        return losses

    return loop


def penalised(model: Any, batch: Any, weights: Any, scale: float = 1.0) -> torch.Tensor:
    return cross_entropy(model, batch) * scale + weights["l2"] * model.last.weight.square().sum()


@pytest.mark.parametrize("what", ["a dictionary", "a keyword"])
def test_a_partial(what: str) -> None:
    def loss(world: World) -> Any:
        world.more["loss"] = functools.partial(penalised, weights={"l2": 0.0}, scale=1.0)
        return world.more["loss"]

    def change(world: World, value: float) -> None:
        keywords = world.more["loss"].keywords
        if what == "a dictionary":
            keywords["weights"]["l2"] = value
        else:
            keywords["scale"] = 1.0 + value

    equal(half(change), loss=loss)


def test_a_module_of_settings() -> None:
    def loss(world: World) -> Any:
        settings.BETA = 0.0
        return lambda m, b: cross_entropy(m, b) + settings.BETA * m.last.weight.square().sum()

    def change(world: World, value: float) -> None:
        settings.BETA = value

    equal(half(change), loss=loss)


class Methods(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shaped(super().forward(x))

    def shaped(self, x: torch.Tensor) -> torch.Tensor:
        return x


def plain(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x


def doubled(self: Any, x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_a_method_of_the_class() -> None:
    def change(world: World, value: float) -> None:
        Methods.shaped = doubled if value else plain  # type: ignore[method-assign]

    equal(half(change), build=Methods)


def test_a_method_of_the_object() -> None:
    def change(world: World, value: float) -> None:
        if value:
            world.model.shaped = types.MethodType(doubled, world.model)

    equal(half(change), build=Methods)


def test_forward_of_the_object() -> None:
    def change(world: World, value: float) -> None:
        if value:
            real = type(world.model).forward
            world.model.forward = lambda x: 2 * real(world.model, x)

    equal(half(change))


class Places(Net):
    """Reads a queue, a set, slots and a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.flags = deque([1.0, 1.0], maxlen=2), {"plain"}
        self.slots, self.mapping = Slotted(), UserDict({"w": 0.0})
        self.frozen = Frozen()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x) * sum(self.queue) * self.frozen.scale
        out = out + self.slots.shift + self.mapping["w"]
        return 2 * out if "double" in self.flags else out


class Slotted:
    __slots__ = ("shift",)

    def __init__(self) -> None:
        self.shift = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    scale: float = 1.0


def a_queue(world: World, value: float) -> None:
    world.model.queue.append(1.0 + value)


def a_set(world: World, value: float) -> None:
    world.model.flags.discard("plain" if value else "double")
    world.model.flags.add("double" if value else "plain")


def a_slot(world: World, value: float) -> None:
    world.model.slots.shift = value


def a_mapping(world: World, value: float) -> None:
    world.model.mapping["w"] = value


def a_frozen_record(world: World, value: float) -> None:
    world.model.frozen = Frozen(1.0 + value)


@pytest.mark.parametrize(
    "change", [a_queue, a_set, a_slot, a_mapping, a_frozen_record], ids=lambda f: f.__name__
)
def test_a_place_in_the_model(change: Any) -> None:
    equal(half(change), build=Places)


def test_a_distribution_that_the_loss_holds() -> None:
    """Its tensors lie in attributes that torch's own code reads."""

    def loss(world: World) -> Any:
        prior = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
        world.more["prior"] = prior
        return lambda m, b: cross_entropy(m, b) - 0.1 * prior.log_prob(m(b["x"])).mean()

    def change(world: World, value: float) -> None:
        world.more["prior"].loc.fill_(value)

    equal(half(change), loss=loss)


class Appends(Net):
    def __init__(self, queue: bool) -> None:
        super().__init__()
        self.kept: Any = deque([0.0, 0.0], maxlen=2) if queue else []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x) + float(len(self.kept))
        self.kept.append(1.0)
        return out


@pytest.mark.parametrize("queue", [False, True])
def test_what_forward_makes_longer_is_refused_by_name(queue: bool) -> None:
    with pytest.raises(bridge.Refused, match="kept"):
        run(half(lambda world, value: None), bridge=True, build=lambda: Appends(queue))


class Draws(Net):
    """Numbers that are the next of something: an iterator, a generator of torch's own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.count, self.made, self.how = itertools.count(1), torch.Generator().manual_seed(0), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if self.how == "iterator":
            return out / next(self.count)
        return out + torch.randn(out.shape, generator=self.made)


@pytest.mark.parametrize("how", ["iterator", "generator"])
def test_what_is_another_number_in_every_step_is_refused(how: str) -> None:
    with pytest.raises(bridge.Refused):
        run(half(lambda world, value: None), bridge=True, build=lambda: Draws(how))


def test_tying_and_parametrizing_between_steps() -> None:
    from torch.nn.utils.parametrizations import weight_norm

    def change(world: World, value: float) -> None:
        if value and not hasattr(world.model.last, "parametrizations"):
            weight_norm(world.model.last)

    def loop(world: World) -> list[float]:
        return half(change)(world)

    try:
        equal(loop)
    except bridge.Refused as refused:
        assert "optimizer" in str(refused) or "parameter" in str(refused)


def test_two_variables_of_one_name_are_told_apart() -> None:
    """Both closures are of one function; a program is found by what each of them says."""

    def made(held: dict[str, float]) -> Any:
        weight = held["w"]

        def value(model: Any) -> torch.Tensor:
            return weight * model.last.weight.square().sum()

        def put(now: float) -> None:
            nonlocal weight
            weight = now

        return value, put

    def loss(world: World) -> Any:
        (one, put_one), (two, put_two) = made({"w": 0.0}), made({"w": 0.0})
        world.more["puts"] = (put_one, put_two)
        return lambda m, b: cross_entropy(m, b) + one(m) + 3.0 * two(m)

    def loop(world: World) -> list[float]:
        losses, (put_one, put_two) = [], world.more["puts"]
        for batch, (first, second) in zip(
            batches(4), ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)), strict=True
        ):
            put_one(first)
            put_two(second)
            losses.append(world.step(batch))
        return losses

    equal(loop, loss=loss)


def test_an_array_that_changes_again_and_again() -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(5)):
            world.model.mask[1] = (1.0, 0.5, 0.25, 0.5, 1.0)[i]
            losses.append(world.step(batch))
        return losses

    world = equal(loop, build=Masked)
    assert len(world.more["compiled"].programs) == 3  # one for each content
