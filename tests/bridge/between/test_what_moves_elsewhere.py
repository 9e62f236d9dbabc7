"""What a loss reads of what trains (a schedule's epoch, the optimizer's learning rate, how hard the data is), of a
module of settings that it was given, behind a read-only view, and beside or inside of a container that is very long."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from detente import bridge
from tests.bridge.between import settings
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal, run

LONG = 60_000


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


def penalty(model: Any) -> torch.Tensor:
    return model.last.weight.square().sum()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.5)


def steps(change: Any, count: int = 6) -> Any:
    """A loop that calls ``change(world, i)`` behind every step."""

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(count)):
            losses.append(world.step(batch))
            change(world, i)
        return losses

    return loop


def a_schedule(world: World) -> lr_scheduler.LRScheduler:
    world.more["schedule"] = lr_scheduler.StepLR(world.optimizer, 1, 0.5)
    return world.more["schedule"]


def its_epoch(world: World) -> Any:
    schedule = a_schedule(world)
    return lambda m, b: cross_entropy(m, b) + 0.3 * schedule.last_epoch * penalty(m)


def its_last_rate(world: World) -> Any:
    schedule = a_schedule(world)
    return lambda m, b: cross_entropy(m, b) + 3.0 * schedule.get_last_lr()[0] * penalty(m)


def the_rate_of_the_optimizer(world: World) -> Any:
    a_schedule(world)
    optimizer = world.optimizer
    return lambda m, b: cross_entropy(m, b) + 3.0 * optimizer.param_groups[0]["lr"] * penalty(m)


def the_rate_by_the_schedules_optimizer(world: World) -> Any:
    schedule = a_schedule(world)
    return lambda m, b: cross_entropy(m, b) + 3.0 * schedule.optimizer.param_groups[0]["lr"] * penalty(m)


def every_number_of_a_group(world: World) -> Any:
    a_schedule(world)
    (group,) = world.optimizer.param_groups

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return cross_entropy(model, batch) + sum(v for k, v in group.items() if k[0] == "l") * penalty(model)

    return loss


@pytest.mark.parametrize(
    "loss",
    [
        its_epoch,
        its_last_rate,
        the_rate_of_the_optimizer,
        the_rate_by_the_schedules_optimizer,
        every_number_of_a_group,
    ],
    ids=lambda f: f.__name__,
)
def test_what_a_schedule_moves(loss: Any) -> None:
    equal(steps(lambda world, i: world.more["schedule"].step()), loss=loss, optimizer=sgd)


@pytest.mark.parametrize("loss", [its_last_rate, the_rate_of_the_optimizer], ids=lambda f: f.__name__)
def test_a_learning_rate_is_an_input_whatever_else_is_scheduled(loss: Any) -> None:
    def change(world: World, i: int) -> None:
        world.more["schedule"].step()
        world.optimizer.param_groups[0]["momentum"] *= 0.9

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world = equal(steps(change), loss=loss, optimizer=sgd)
    assert len(world.more["compiled"].programs) <= 3


def test_a_penalty_over_the_parameters_of_the_groups() -> None:
    def loss(world: World) -> Any:
        optimizer = world.optimizer

        def value(model: Any, batch: Any) -> torch.Tensor:
            squares = [p.square().sum() for group in optimizer.param_groups for p in group["params"]]
            return cross_entropy(model, batch) + 0.1 * torch.stack(squares).sum()

        return value

    equal(steps(lambda world, i: None), loss=loss, optimizer=sgd)


@pytest.mark.parametrize("how", ["an entry", "whether there is one"])
def test_the_state_of_the_optimizer_is_refused(how: str) -> None:
    def loss(world: World) -> Any:
        optimizer = world.optimizer

        def value(model: Any, batch: Any) -> torch.Tensor:
            if how == "an entry":
                return cross_entropy(model, batch) + len(optimizer.state[model.last.weight]) * penalty(model)
            return cross_entropy(model, batch) * (2.0 if model.last.weight in optimizer.state else 1.0)

        return value

    with pytest.raises(bridge.Refused, match="reads the optimizer's state"):
        run(steps(lambda world, i: None), bridge=True, loss=loss, optimizer=sgd)


def test_a_schedule_that_nobody_asks_compiles_nothing() -> None:
    def loss(world: World) -> Any:
        schedule = a_schedule(world)
        return lambda m, b: cross_entropy(m, b) + (0.0 if schedule is None else 0.1) * penalty(m)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world = equal(steps(lambda world, i: world.more["schedule"].step()), loss=loss, optimizer=sgd)
    assert len(world.more["compiled"].programs) == 1


def test_a_list_in_the_place_of_an_equal_one_is_looked_into() -> None:
    def loss(world: World) -> Any:
        held = world.more["held"] = types.SimpleNamespace(weights=[0.0, 1.0])
        return lambda m, b: cross_entropy(m, b) + held.weights[0] * penalty(m)

    def change(world: World, i: int) -> None:
        if i == 1:
            world.more["held"].weights = [0.0, 1.0]
        if i == 3:
            world.more["held"].weights[0] = 1.0

    equal(steps(change), loss=loss)


class Rows(torch.utils.data.Dataset[Any]):
    """Its data is longer than anybody looks at."""

    def __init__(self) -> None:
        self.rows = [[float(i)] for i in range(LONG)]
        self.table, self.weight = np.zeros((600, 600)), torch.zeros(())
        self.difficulty = 0.0

    def __len__(self) -> int:
        return len(self.rows)


def of_a_data_set(world: World) -> Any:
    found = world.more["data"] = Rows()
    return lambda m, b: cross_entropy(m, b) + found.difficulty * penalty(m)


def of_a_loader(world: World) -> Any:
    found = world.more["data"] = Rows()
    loader = torch.utils.data.DataLoader(found)
    return lambda m, b: cross_entropy(m, b) + loader.dataset.difficulty * penalty(m)


@pytest.mark.parametrize("loss", [of_a_data_set, of_a_loader], ids=lambda f: f.__name__)
def test_a_number_of_a_data_set(loss: Any) -> None:
    def change(world: World, i: int) -> None:
        world.more["data"].difficulty = 0.5 * (i >= 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of its rows nothing is asked
        equal(steps(change), loss=loss)


def test_a_tensor_of_a_data_set() -> None:
    def loss(world: World) -> Any:
        found = world.more["data"] = Rows()
        return lambda m, b: cross_entropy(m, b) + found.weight * penalty(m)

    equal(steps(lambda world, i: world.more["data"].weight.fill_(0.5 * (i >= 2))), loss=loss)


def test_what_is_not_looked_at_is_said() -> None:
    def loss(world: World) -> Any:
        found = Rows()
        return lambda m, b: cross_entropy(m, b) + found.rows[0][0] * penalty(m)

    with pytest.warns(UserWarning, match=r"found of .* is more than a step looks at"):
        run(steps(lambda world, i: None, 2), bridge=True, loss=loss)


def of_a_module_that_it_holds(world: World) -> Any:
    settings.BETA, config = 0.0, settings
    return lambda m, b: cross_entropy(m, b) + config.BETA * penalty(m)


def weight_of(config: Any) -> float:
    return config.BETA


def of_a_module_that_it_hands_on(world: World) -> Any:
    settings.BETA = 0.0
    return lambda m, b: cross_entropy(m, b) + weight_of(settings) * penalty(m)


@pytest.mark.parametrize(
    "loss", [of_a_module_that_it_holds, of_a_module_that_it_hands_on], ids=lambda f: f.__name__
)
def test_a_module_of_settings(loss: Any) -> None:
    def change(world: World, i: int) -> None:
        settings.BETA = 0.5 * (i >= 2)

    equal(steps(change), loss=loss)


class Fixed:
    beta = 0.0


@pytest.mark.parametrize("of", ["a dictionary", "a class"])
def test_a_read_only_view(of: str) -> None:
    def loss(world: World) -> Any:
        Fixed.beta = 0.0
        held = world.more["held"] = {"beta": 0.0}
        view = types.MappingProxyType(held) if of == "a dictionary" else vars(Fixed)
        return lambda m, b: cross_entropy(m, b) + view["beta"] * penalty(m)

    def change(world: World, i: int) -> None:
        world.more["held"]["beta"] = Fixed.beta = 0.5 * (i >= 2)

    equal(steps(change), loss=loss)


class Reads(Net):
    """A vocabulary, and numbers in attributes behind it."""

    def __init__(self, vocabulary: Any) -> None:
        super().__init__()
        self.vocabulary, self.temperature = vocabulary, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.vocabulary
        held = table["ids"] if isinstance(table, dict) and "ids" in table else table
        return super().forward(x) * self.temperature + 0.01 * (held["w1"] if "w1" in held else held[1])


def words() -> dict[str, Any]:
    return {f"w{i}": i for i in range(LONG)}


VOCABULARIES: dict[str, Any] = {
    "a dictionary": words,
    "a list": lambda: list(range(LONG)),
    "a list in a dictionary": lambda: {"ids": list(range(LONG)), "more": {"l2": 0.0}},
}


def hot(world: World, i: int) -> None:
    world.model.temperature = 1.0 + (i >= 2)


def weighs(world: World, i: int) -> None:
    world.more["weights"]["l2"] = 0.5 * (i >= 2)


@pytest.mark.parametrize("change", [hot, weighs], ids=lambda f: f.__name__)
@pytest.mark.parametrize("which", ["a dictionary", "a list in a dictionary"])
def test_what_stands_beside_a_long_container(which: str, change: Any) -> None:
    def loss(world: World) -> Any:
        beside = world.more["weights"] = world.model.vocabulary.get("more", {"l2": 0.0})
        return lambda m, b: cross_entropy(m, b) + beside["l2"] * penalty(m)

    equal(steps(change, 4), build=lambda: Reads(VOCABULARIES[which]()), loss=loss)


@pytest.mark.parametrize("which", ["a dictionary", "a list", "a list in a dictionary"])
def test_what_moves_inside_of_a_long_container(which: str) -> None:
    def change(world: World, i: int) -> None:
        held = world.model.vocabulary
        held = held["ids"] if isinstance(held, dict) and "ids" in held else held
        held["w1" if isinstance(held, dict) else 1] = 1 + 100 * (i >= 2)

    equal(steps(change, 5), build=lambda: Reads(VOCABULARIES[which]()))


def test_a_small_table_beside_many_rows() -> None:
    """Where not all of a container is looked at, the small of it is."""

    class Deep(Net):
        def __init__(self) -> None:
            super().__init__()
            self.held = {"rows": [{"a": i, "b": i, "c": i} for i in range(20_000)], "more": {"l2": 0.0}}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1.0 + self.held["more"]["l2"])

    def change(world: World, i: int) -> None:
        world.model.held["more"]["l2"] = 0.5 * (i >= 2)

    with pytest.warns(UserWarning, match=r"model\.held is more than a step looks at"):
        equal(steps(change, 4), build=Deep)
