"""Values that lie in classes, in functions themselves, and in containers that C or Python's own code reads."""

from __future__ import annotations

import array
import ctypes
import enum
import multiprocessing
import os
import string
import sys
import types
import warnings
import weakref
from collections import ChainMap
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


def moving(change: Any, *values: float) -> Any:
    """A loop that calls ``change(value)`` before each step."""

    def loop(world: World) -> list[float]:
        losses = []
        for batch, value in zip(batches(len(values)), values, strict=True):
            change(value)
            losses.append(world.step(batch))
        return losses

    return loop


def penalised(model: Any, batch: Any, by: float) -> torch.Tensor:
    return cross_entropy(model, batch) + by * model.last.weight.square().sum()


class Settings:
    """As many scripts keep them: the class itself is the namespace, and holds others."""

    beta: Any = 0.0
    tuple = (0.0, 1)
    number = np.float32(0.0)
    array = np.zeros(1)
    record = types.SimpleNamespace(beta=0.0)

    class Inner:
        beta = 0.0


class Below(Settings):
    pass


class Kind(enum.Enum):
    ONE = "one"


class Pairs(dict[str, float]):
    def __init__(self) -> None:
        super().__init__(w=1.0)
        self.beta = 0.0


class Defaults:
    beta = 0.0


BETA: ContextVar[float] = ContextVar("BETA", default=0.0)
CELL, LIST, OBJECTS = ctypes.c_double(0.0), array.array("d", [0.0]), np.array([0.0, None], object)
CHAINED, PAIRS, OWN, HELD = ChainMap({}, {"beta": 0.0}), Pairs(), Defaults(), Defaults()
SHARED, BYTES = multiprocessing.Array("d", [0.0]), memoryview(bytearray(8)).cast("d")
OLDER, NEWER = np.poly1d([0.0, 0.0]), np.polynomial.Polynomial([0.0])
FACTOR, TEXT = {"beta": 0.0}, string.Template("0.0")
EACH = np.vectorize(lambda x: x * FACTOR["beta"])
WEAK, GET = weakref.ref(HELD), CHAINED.maps[1].get


def with_attribute(model: Any, batch: Any) -> torch.Tensor:
    return penalised(model, batch, with_attribute.beta)  # type: ignore[attr-defined]


def with_default(model: Any, batch: Any, beta: float = 0.0) -> torch.Tensor:
    return penalised(model, batch, beta)


def with_keyword(model: Any, batch: Any, *, beta: float = 0.0) -> torch.Tensor:
    return penalised(model, batch, beta)


def with_code(model: Any, batch: Any) -> torch.Tensor:
    return cross_entropy(model, batch)


def doubled(model: Any, batch: Any) -> torch.Tensor:
    return 2 * cross_entropy(model, batch)


CODE = with_code.__code__


def put(owner: Any, name: str) -> Any:
    return lambda value: setattr(owner, name, value)


PLACES: dict[str, tuple[Any, Any]] = {
    "a class": (lambda m, b: penalised(m, b, Settings.beta), put(Settings, "beta")),
    "a class of a class": (lambda m, b: penalised(m, b, Settings.Inner.beta), put(Settings.Inner, "beta")),
    "a tuple of a class": (
        lambda m, b: penalised(m, b, Settings.tuple[0]),
        lambda value: setattr(Settings, "tuple", (value, 1)),
    ),
    "numpy's number of a class": (
        lambda m, b: penalised(m, b, float(Settings.number)),
        lambda value: setattr(Settings, "number", np.float32(value)),
    ),
    "an array of a class": (
        lambda m, b: penalised(m, b, float(Settings.array[0])),
        Settings.array.fill,
    ),
    "a record of a class": (lambda m, b: penalised(m, b, Settings.record.beta), put(Settings.record, "beta")),
    "a class below": (
        lambda m, b: penalised(m, b, Below.beta),
        lambda value: (
            setattr(Below, "beta", value) if value else vars(Below).get("beta") and delattr(Below, "beta")
        ),
    ),
    "over a default of the class": (
        lambda m, b: penalised(m, b, OWN.beta),
        lambda value: setattr(OWN, "beta", value) if value else vars(OWN).clear(),
    ),
    "a function's attribute": (with_attribute, put(with_attribute, "beta")),
    "a function's defaults": (with_default, lambda value: setattr(with_default, "__defaults__", (value,))),
    "a function's keywords": (
        with_keyword,
        lambda value: setattr(with_keyword, "__kwdefaults__", {"beta": value}),
    ),
    "a function's code": (
        with_code,
        lambda value: setattr(with_code, "__code__", doubled.__code__ if value else CODE),
    ),
    "a member of an enumeration": (lambda m, b: penalised(m, b, Kind.ONE.beta), put(Kind.ONE, "beta")),
    "a context": (lambda m, b: penalised(m, b, BETA.get()), BETA.set),
    "the environment": (
        lambda m, b: penalised(m, b, float(os.environ["DETENTE_TEST_BETA"])),
        lambda value: os.environ.update(DETENTE_TEST_BETA=str(value)),
    ),
    "a number of ctypes": (lambda m, b: penalised(m, b, CELL.value), put(CELL, "value")),
    "an array of Python's": (
        lambda m, b: penalised(m, b, LIST[0]),
        lambda value: LIST.__setitem__(0, value),
    ),
    "an array of objects": (
        lambda m, b: penalised(m, b, OBJECTS[0]),
        lambda value: OBJECTS.__setitem__(0, value),
    ),
    "a chain of mappings": (
        lambda m, b: penalised(m, b, CHAINED["beta"]),
        lambda value: CHAINED.maps[1].update(beta=value),
    ),
    "a method of a mapping": (
        lambda m, b: penalised(m, b, GET("beta")),
        lambda value: CHAINED.maps[1].update(beta=value),
    ),
    "an attribute of a mapping": (lambda m, b: penalised(m, b, PAIRS.beta), put(PAIRS, "beta")),
    # Objects of Python's and numpy's classes, whose attributes their own code asks for and nobody else.
    "an array that processes share": (
        lambda m, b: penalised(m, b, SHARED[0]),
        lambda value: SHARED.__setitem__(0, value),
    ),
    "a view of bytes": (lambda m, b: penalised(m, b, BYTES[0]), lambda value: BYTES.__setitem__(0, value)),
    "a polynomial": (
        lambda m, b: penalised(m, b, float(OLDER(1.0))),
        lambda value: OLDER.coeffs.__setitem__(0, value),
    ),
    "a polynomial whose numbers are put": (
        lambda m, b: penalised(m, b, float(NEWER(0.0))),
        lambda value: setattr(NEWER, "coef", np.array([value])),
    ),
    "a function that numpy calls": (
        lambda m, b: penalised(m, b, float(EACH(1.0))),
        lambda value: FACTOR.update(beta=value),
    ),
    "a text with places": (
        lambda m, b: penalised(m, b, float(TEXT.substitute())),
        lambda value: setattr(TEXT, "template", str(value)),
    ),
    "behind a weak reference": (lambda m, b: penalised(m, b, WEAK().beta), put(HELD, "beta")),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_value_of_the_loss(place: str) -> None:
    loss, change = PLACES[place]
    change(0.0)
    try:
        equal(moving(change, 0.0, 0.0, 1.0, 1.0, 0.0), loss=lambda world: loss, certificate="none")
    finally:
        change(0.0)


class Scaled(Net):
    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def test_a_number_of_the_class_that_changes_again_and_again() -> None:
    """From its second change on it is an input of the program, and has to be one also where it lies in a class."""
    equal(moving(put(Scaled, "scale"), 1.0, 1.2, 1.5, 1.9, 2.4), build=Scaled, certificate="none")


class Counted(Net):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return super().forward(x) * (1 + 0.1 * self.calls)


def test_a_count_of_the_class_that_forward_moves() -> None:
    def loop(world: World) -> list[float]:
        Counted.calls = 0
        return [world.step(batch) for batch in batches(4)]

    equal(loop, build=Counted, certificate="none")


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_a_layer_that_is_of_another_class() -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(4)):
            if i == 2:
                world.model.last.__class__ = Doubled
            losses.append(world.step(batch))
        return losses

    equal(loop, certificate="none")


def test_hooks_of_all_modules_and_a_method_of_torchs_own_class() -> None:
    real = nn.Linear.forward

    def loop(world: World) -> list[float]:
        losses, hook = [], None
        for i, batch in enumerate(batches(5)):
            if i == 1:
                hook = nn.modules.module.register_module_forward_hook(
                    lambda module, given, out: 0.5 * out if isinstance(module, nn.Linear) else None
                )
            if i == 2 and hook is not None:
                hook.remove()
            nn.Linear.forward = (lambda self, x: 2 * real(self, x)) if i == 3 else real  # type: ignore[method-assign]
            losses.append(world.step(batch))
        return losses

    equal(loop, certificate="none")


def test_a_class_that_was_typed_in() -> None:
    """In a notebook, in ``python -c`` and in ``exec`` a class has no file; it is the user's all the same."""
    there: dict[str, Any] = {"__name__": "typed_in"}
    exec("class Typed:\n    beta = 0.0\n", there)
    typed = there["Typed"]

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return penalised(model, batch, typed.beta)

    def change(value: float) -> None:
        typed.beta = value

    equal(moving(change, 0.0, 0.5, 0.0), loss=lambda world: loss, certificate="none")


def test_a_module_that_the_loss_imports_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = types.ModuleType("settings_of_a_loss")
    monkeypatch.setitem(sys.modules, "settings_of_a_loss", settings)
    vars(settings)["beta"] = 0.0

    def loss(model: Any, batch: Any) -> torch.Tensor:
        from settings_of_a_loss import beta  # type: ignore[import-not-found]  # pyright: ignore

        return penalised(model, batch, beta)

    def change(value: float) -> None:
        vars(settings)["beta"] = value

    equal(moving(change, 0.0, 0.5, 0.0), loss=lambda world: loss, certificate="none")
