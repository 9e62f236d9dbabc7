"""Attributes that no code asks for by a name in it: what takes objects apart asks the class for the names."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.bridge.between.loops import World, batches, cross_entropy, equal


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


@dataclasses.dataclass
class Config:
    shrink_rate: float = 0.0
    out_gain: float = 1.0


@dataclasses.dataclass(slots=True)
class Slotted:
    shrink_rate: float = 0.0
    out_gain: float = 1.0


def of_attrs() -> Any:
    attrs = pytest.importorskip("attrs")
    return attrs.make_class(
        "Attrs", {"shrink_rate": attrs.field(default=0.0), "out_gain": attrs.field(default=1.0)}
    )()


def of_pydantic() -> Any:
    pydantic = pytest.importorskip("pydantic")
    return pydantic.create_model("Pydantic", shrink_rate=(float, 0.0), out_gain=(float, 1.0))()


class Plain:
    def __init__(self) -> None:
        self.shrink_rate, self.out_gain = 0.0, 1.0


def total(model: Any, batch: Any, rate: float, gain: float) -> torch.Tensor:
    return gain * cross_entropy(model, batch) + rate * model.last.weight.square().sum()


Reads = Callable[[Any], Any]


def as_keywords(config: Any) -> Any:
    return dataclasses.asdict(config).values()


def as_a_tuple(config: Any) -> Any:
    return dataclasses.astuple(config)


def as_another(config: Any) -> Any:
    return dataclasses.astuple(dataclasses.replace(config, out_gain=1.0))


def by_their_names(config: Any) -> Any:
    match config:
        case Config(shrink_rate=rate, out_gain=gain):
            return rate, gain
    raise AssertionError(config)


def by_their_places(config: Any) -> Any:
    match config:
        case Config(rate, gain):
            return rate, gain
    raise AssertionError(config)


def as_keywords_of_attrs(config: Any) -> Any:
    attrs = sys.modules["attrs"]
    return attrs.asdict(config).values()


def dumped(config: Any) -> Any:
    return config.model_dump().values()


def in_turn(config: Any) -> Any:
    return dict(config).values()


def by_members(config: Any) -> Any:
    return [value for key, value in reversed(inspect.getmembers(config)) if not key.startswith("_")]


def by_its_state(config: Any) -> Any:
    return config.__getstate__().values()


CASES: list[tuple[Reads, Any]] = [
    (as_keywords, Config),
    (as_a_tuple, Config),
    (as_another, Config),
    (as_a_tuple, Slotted),
    (by_their_names, Config),
    (by_their_places, Config),
    (as_keywords_of_attrs, of_attrs),
    (dumped, of_pydantic),
    (in_turn, of_pydantic),
    (by_members, Plain),
    (by_its_state, Plain),
]


@pytest.mark.parametrize(
    ("reads", "kind"), CASES, ids=[f"{reads.__name__}-{kind.__name__}" for reads, kind in CASES]
)
def test_a_field_that_moves(reads: Reads, kind: Any) -> None:
    def loss(world: World) -> Any:
        config = world.more["config"] = kind()
        return lambda m, b: total(m, b, *reads(config))

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(4)):
            setattr(world.more["config"], "_".join(("shrink", "rate")), 0.5 * (i >= 2))
            losses.append(world.step(batch))
        return losses

    equal(loop, loss=loss)


def test_what_is_no_field_does_not_count() -> None:
    """What trains counts its steps beside a record that is taken apart."""

    class Trainer:
        def __init__(self) -> None:
            self.config, self.steps_so_far = Config(), 0

        def loss(self, model: Any, batch: Any) -> torch.Tensor:
            return total(model, batch, *dataclasses.astuple(self.config))

    def loss(world: World) -> Any:
        world.more["trainer"] = Trainer()
        return world.more["trainer"].loss

    def loop(world: World) -> list[float]:
        losses = []
        for batch in batches(4):
            world.more["trainer"].steps_so_far += 1
            losses.append(world.step(batch))
        return losses

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world = equal(loop, loss=loss)
    assert len(world.more["compiled"].programs) == 1
