"""By which names code asks for a value: each that it may ask by is watched, and what it only stores is not."""

from __future__ import annotations

import functools
import math
import operator
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente.bridge.live.ran import Ran
from tests.bridge.between.loops import Net, World, batches, equal


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


class Asking(Net):
    """``by(self)`` is a factor of what forward gives."""

    by: Callable[[Any], Any]

    def __init__(self) -> None:
        super().__init__()
        self.gamma = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * type(self).by(self)


class ByAGetter(Asking):
    def __init__(self) -> None:
        super().__init__()
        self.asked = operator.attrgetter("gamma")

    def by(self) -> float:
        return self.asked(self)


class ByAPartial(Asking):
    def __init__(self) -> None:
        super().__init__()
        self.asked = functools.partial(getattr, self, "gamma")

    def by(self) -> float:
        return self.asked()


class ByAMadeUpName(Asking):
    def by(self) -> float:
        return self.__getattribute__("".join(["gam", "ma"]))


class Holder:
    def __init__(self) -> None:
        self.gamma = 1.0

    def number(self) -> float:
        return self.gamma


class ByAMethodCaller(Asking):
    def __init__(self) -> None:
        super().__init__()
        self.held, self.asked = Holder(), operator.methodcaller("number")

    def by(self) -> float:
        return self.asked(self.held)


@pytest.mark.parametrize("build", [ByAGetter, ByAPartial, ByAMadeUpName, ByAMethodCaller])
def test_a_value_that_no_code_names(build: Callable[[], nn.Module]) -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for count, batch in enumerate(batches(4)):
            losses.append(world.step(batch))
            getattr(world.model, "held", world.model).gamma = 1 / (count + 2)
        return losses

    equal(loop, build=build, certificate="none")


class Calling(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(F.gelu(super().forward(x))).relu() * math.cos(0.5)


PATCHED = {
    "torch.nn.functional": (F, "gelu", lambda x: x * 0.5),
    "torch": (torch, "tanh", lambda x: x * 0.5),
    "a method": (torch.Tensor, "relu", lambda x: x * 0.5),
    "math": (math, "cos", lambda value: 0.3),
    "what torch's modules call": (F, "linear", lambda x, weight, bias=None: x @ weight.t() * 0.5),
}


@pytest.mark.parametrize("kind", PATCHED)
def test_a_function_of_a_library_that_is_replaced(kind: str) -> None:
    where, name, other = PATCHED[kind]

    def loop(world: World) -> list[float]:
        own, losses = getattr(where, name), []
        try:
            for count, batch in enumerate(batches(4)):
                if count == 2:
                    setattr(where, name, other)
                losses.append(world.step(batch))
        finally:
            setattr(where, name, own)
        return losses

    equal(loop, build=Calling, certificate="none")


class Timed(Net):
    """Says how long it took; nobody asks it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begun = time.perf_counter()
        y = super().forward(x)
        self.took = time.perf_counter() - begun
        return y


def test_what_is_only_stored_compiles_nothing_in_later_steps() -> None:
    def loop(world: World) -> list[float]:
        return [world.step(batch) for batch in batches(6)]

    world = equal(loop, build=Timed, certificate="none")
    # before the first step the attribute was not there, which is another program
    assert len(world.more["compiled"].programs) <= 2


def constant(self: Any) -> Any:
    return getattr(self, "beta", None)


def of_a_part(self: Any) -> Any:
    return getattr(self.part, "beta")  # noqa: B009


def joined(self: Any, i: int) -> Any:
    return getattr(self, f"beta{i}")


def of_a_variable(self: Any, i: str) -> Any:
    return getattr(self, i, "beta")


def added(self: Any, i: str) -> Any:
    return getattr(self, "be" + i)


def put_together(self: Any) -> Any:
    return getattr(self, "".join(("be", "ta")))


@pytest.mark.parametrize(
    ("function", "made_up"),
    [
        (constant, False),
        (of_a_part, False),
        (joined, True),
        (of_a_variable, True),
        (added, True),
        (put_together, True),
    ],
)
def test_which_names_stand_in_the_code(function: Any, made_up: bool) -> None:
    ran = Ran()
    ran._codes[function.__code__] = function.__globals__
    assert ran.names().any == made_up
