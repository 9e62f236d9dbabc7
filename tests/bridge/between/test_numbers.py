"""A number that moves twice is an input of the program: the third value compiles nothing."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal


def programs(world: World) -> int:
    return len(world.more["compiled"].programs)


def annealed(change: Any, made: list[int]) -> Any:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches()):
            change(world, 0.1 * i)
            losses.append(world.step(batch))
            if "compiled" in world.more:
                made.append(programs(world))
        return losses

    return loop


def an_attribute(world: World, value: float) -> None:
    world.model.beta = 1.0 + value


def an_entry(world: World, value: float) -> None:
    world.model.cfg["more"][1] = value


def a_weight_of_the_loss(world: World, value: float) -> None:
    world.more["weights"]["l2"] = value


def loss(world: World) -> Any:
    weights = world.more["weights"] = {"l2": 0.0}
    return lambda m, b: cross_entropy(m, b) + weights["l2"] * m.last.weight.square().sum()


@pytest.mark.parametrize("change", [an_attribute, an_entry, a_weight_of_the_loss], ids=lambda f: f.__name__)
def test_the_third_value_compiles_nothing(change: Any) -> None:
    made: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing to warn of: it costs one program
        equal(annealed(change, made), loss=loss)
    assert made[-1] == made[3] <= 3, made


class Settings:
    def __init__(self) -> None:
        self.gain, self._note = 1.0, "of nobody"


class ByNames(Net):
    """Asks for what it reads by names that it makes up, of what has names of its own that begin with a line."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in ("gain", "gains"):
            x = x * getattr(self.settings, name, 1.0)
        return super().forward(x)


def test_where_names_are_made_up_other_tables_stand_as_they_did() -> None:
    made: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equal(
            annealed(lambda world, value: setattr(world.model.settings, "gain", 1.0 + value), made),
            build=ByNames,
        )
    assert made[-1] == made[3] <= 3, made


def test_a_number_in_a_closure() -> None:
    weight, made = 0.0, []

    def held(world: World) -> Any:
        return lambda m, b: cross_entropy(m, b) + weight * m.last.weight.square().sum()

    def change(world: World, value: float) -> None:
        nonlocal weight
        weight = value

    equal(annealed(change, made), loss=held)
    assert made[-1] == made[3] <= 3, made


class Asks(Net):
    """Its forward asks whether the number is above something: each value is a program of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return 2 * out if self.beta > 1.35 else out


def test_a_number_that_decides_is_captured_for_every_value_and_says_what_it_costs() -> None:
    made: list[int] = []
    with pytest.warns(UserWarning, match=r"beta.*every new value is captured"):
        equal(annealed(an_attribute, made), build=Asks)
    assert made[-1] == len(made)


def test_a_number_that_becomes_something_else() -> None:
    def change(world: World, value: float) -> None:
        world.model.beta = 1.0 + value if value < 0.55 else 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equal(annealed(change, []))


def test_a_checkpoint_of_a_step_with_such_a_number_goes_on() -> None:
    import tempfile
    from pathlib import Path

    def loop(world: World) -> list[float]:
        losses = []
        with tempfile.TemporaryDirectory() as folder:
            for i, batch in enumerate(batches()):
                world.model.beta = 1.0 + 0.1 * i
                losses.append(world.step(batch))
                if i == 4 and "compiled" in world.more:
                    world.more["compiled"].save(Path(folder) / "s.safetensors")
                    world.more["compiled"].load(Path(folder) / "s.safetensors")
        return losses

    equal(loop)


def weighted(value: Any, made: list[int]) -> Any:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches()):
            losses.append(world.step({**batch, "beta": value(i)}))
            if "compiled" in world.more:
                made.append(programs(world))
        return losses

    return loop


def test_a_float_of_the_batch_is_an_input_from_its_second_value_on() -> None:
    made: list[int] = []

    def penalised(world: World) -> Any:
        return lambda m, b: cross_entropy(m, b) + b["beta"] * m.last.weight.square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equal(weighted(lambda i: 0.1 * i, made), loss=penalised, example={**batches()[0], "beta": 0.0})
    assert made == [1, *[2] * (len(made) - 1)], made


def test_a_float_of_the_batch_that_decides_is_captured_for_every_value() -> None:
    made: list[int] = []

    def asked(world: World) -> Any:
        return lambda m, b: cross_entropy(m, b) * (2.0 if b["beta"] > 0.35 else 1.0)

    with pytest.warns(UserWarning, match="number in the batch"):
        equal(weighted(lambda i: 0.1 * i, made), loss=asked, example={**batches()[0], "beta": 0.0})
    assert made[-1] == len(made)


class Counts(Net):
    """Its forward counts its calls; ``every``: and asks the count."""

    every: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out = super().forward(x)
        return out if self.every is None or self.calls % self.every else 2 * out


class CountsAndAsks(Counts):
    every = 3


class CountsAndComputes(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.calls


class AsksInEval(Counts):
    """In training it only counts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return out if self.training else out * self.calls


def steps(made: list[int], switch: bool = False) -> Any:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(8)):
            world.model.train(not (switch and i >= 6))
            losses.append(world.step(batch))
            made.append(programs(world) if "compiled" in world.more else 0)
        assert world.model.calls == 8
        return losses

    return loop


def test_a_number_that_only_counts_compiles_nothing() -> None:
    made: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equal(steps(made), build=Counts)
    assert made[-1] == made[-6] <= 2, made


@pytest.mark.parametrize("build", [CountsAndAsks, CountsAndComputes])
def test_a_count_that_decides_is_captured_for_every_value(build: Any) -> None:
    made: list[int] = []
    with pytest.warns(UserWarning, match=r"calls.*every new value is captured"):
        equal(steps(made), build=build)
    assert made[-1] == 8, made


def test_a_count_that_another_mode_asks() -> None:
    made: list[int] = []
    with pytest.warns(UserWarning, match="calls changes between steps and does more than count"):
        equal(steps(made, switch=True), build=AsksInEval)
