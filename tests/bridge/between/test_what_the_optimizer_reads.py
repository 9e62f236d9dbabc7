"""What an optimizer of the user's own reads in Python is what it says at that step, or is refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import detente
from detente import bridge
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal, run

SCALE = 1.0
CALLS = {"count": 0}


@pytest.fixture(autouse=True)
def from_the_start() -> Iterator[None]:
    globals()["SCALE"], CALLS["count"], InClass.scale = 1.0, 0, 1.0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


class Own(torch.optim.Optimizer):
    """Plain descent with a number of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.scale, self.table, self.row = 1.0, {"scale": 1.0}, [1.0]
        self.tensor, self.function = torch.tensor(1.0), lambda value: value
        self.fixed: Any = {}

    def number(self) -> float:
        return 1.0

    def step(self, closure: Any = None) -> None:
        by = self.number()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p not in self.fixed:
                    p.data.add_(p.grad, alpha=-group["lr"] * by)


class Attribute(Own):
    def number(self) -> float:
        return self.scale


class Entry(Own):
    def number(self) -> float:
        return self.table["scale"] * self.row[0]


class Later(Own):
    def number(self) -> float:
        return getattr(self, "warmth", 1.0)


class OfATensor(Own):
    def number(self) -> float:
        return float(self.tensor)


class Called(Own):
    def number(self) -> float:
        return self.function(1.0)


class InClass(Own):
    scale = 1.0

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        del self.scale

    def number(self) -> float:
        return self.scale


class Global(Own):
    def number(self) -> float:
        return SCALE


def closing(over: dict[str, float]) -> type[Own]:
    class Closure(Own):
        def number(self) -> float:
            return over["scale"]

    return Closure


def halves(optimizer: Any, count: int) -> None:
    optimizer.scale *= 0.5


def halves_an_entry(optimizer: Any, count: int) -> None:
    optimizer.table["scale"] *= 0.5
    optimizer.row[0] *= 0.9


def sets_it_later(optimizer: Any, count: int) -> None:
    if count == 1:
        optimizer.warmth = 0.3


def writes_a_tensor(optimizer: Any, count: int) -> None:
    optimizer.tensor.mul_(0.5)


def another_function(optimizer: Any, count: int) -> None:
    optimizer.function = lambda value: 0.3 * value


def in_its_class(optimizer: Any, count: int) -> None:
    type(optimizer).scale = 1 / (count + 2)


def a_global(optimizer: Any, count: int) -> None:
    globals()["SCALE"] = 1 / (count + 2)


def fixes_a_parameter(optimizer: Any, count: int) -> None:
    optimizer.fixed[optimizer.param_groups[0]["params"][-1]] = True


CHANGES: dict[str, tuple[type[Own], Callable[[Any, int], None]]] = {
    "attribute": (Attribute, halves),
    "entry": (Entry, halves_an_entry),
    "later": (Later, sets_it_later),
    "tensor": (OfATensor, writes_a_tensor),
    "function": (Called, another_function),
    "class": (InClass, in_its_class),
    "global": (Global, a_global),
    "parameter": (Own, fixes_a_parameter),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_another_value_is_the_next_steps(kind: str) -> None:
    made, change = CHANGES[kind]

    def loop(world: World) -> list[float]:
        globals()["SCALE"], InClass.scale = 1.0, 1.0
        losses = []
        for count, batch in enumerate(batches(4)):
            losses.append(world.step(batch))
            change(world.optimizer, count)
        return losses

    equal(loop, optimizer=made, certificate="none")


def test_what_a_closure_holds() -> None:
    over = {"scale": 1.0}

    def loop(world: World) -> list[float]:
        losses = []
        for count, batch in enumerate(batches(4)):
            over["scale"] = 0.5**count
            losses.append(world.step(batch))
        return losses

    equal(loop, optimizer=closing(over), certificate="none")


def test_a_schedule_compiles_nothing() -> None:
    def loop(world: World) -> list[float]:
        schedule, losses = torch.optim.lr_scheduler.StepLR(world.optimizer, 1, 0.5), []
        for batch in batches(4):
            losses.append(world.step(batch))
            schedule.step()
        return losses

    world = equal(loop, optimizer=Attribute, certificate="none")
    assert world.more["compiled"]._told_reads == 0


class Counts(Own):
    def number(self) -> float:
        CALLS["count"] += 1
        return 1 / CALLS["count"]


def test_what_it_counts_in_a_global_is_refused_by_name() -> None:
    with pytest.raises(bridge.Refused, match=r"Counts\.step\(\) writes global CALLS"):
        run(lambda w: [w.step(b) for b in batches(2)], bridge=True, optimizer=Counts)


class Set(Own):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.fixed = {self.param_groups[0]["params"][-1]}


class Ids(Own):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.fixed = [id(p) for p in self.param_groups[0]["params"][-1:]]


@pytest.mark.parametrize("made", [Set, Ids])
def test_parameters_that_no_trace_has_are_refused_by_name(made: type[Own]) -> None:
    with pytest.raises(bridge.Refused, match=r"fixed holds parameters as a set, or by their id\(\)"):
        run(lambda w: [w.step(b) for b in batches(2)], bridge=True, optimizer=made)


@pytest.mark.parametrize("kind", ["attribute", "global", "entry"])
def test_a_value_that_moves_before_the_certificate_is_made(kind: str) -> None:
    """Between the first step and the second: eager's step of the certificate was given the new value, and the compiled
    step was said to disagree ("please report this")."""

    class Traced(Own):
        def number(self) -> Any:
            return {"attribute": self.scale, "global": SCALE, "entry": self.table["scale"]}[kind]

    def change(world: World, value: float) -> None:
        world.optimizer.scale = value  # type: ignore[attr-defined]
        globals()["SCALE"] = value
        world.optimizer.table["scale"] = value  # type: ignore[attr-defined]

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(5)):
            change(world, 0.9**i)
            losses.append(world.step(batch))
        return losses

    world = equal(loop, optimizer=Traced)
    assert world.more["compiled"].settled().ok


FROZEN: dict[str, Any] = {"by": {}, "ids": [], "set": set(), "list": []}


class Elsewhere(Own):
    """What is special about a parameter stands in a global."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                known = p in FROZEN["by"] or id(p) in FROZEN["ids"] or p in FROZEN["set"]
                if p.grad is not None and not known and not any(p is q for q in FROZEN["list"]):
                    p.data.add_(p.grad, alpha=-group["lr"])


@pytest.mark.parametrize(
    "put",
    [
        lambda p: FROZEN["by"].update({p: True}),
        lambda p: FROZEN["ids"].append(id(p)),
        FROZEN["set"].add,
        FROZEN["list"].append,
    ],
)
@pytest.mark.parametrize("when", [0, 2])
def test_parameters_that_stand_outside_of_the_optimizer_are_refused(
    put: Callable[[Any], None], when: int
) -> None:
    """A trace has others in their place, and a certificate is made with copies: eager passed over the one that is
    looked up, and the step trained it, in silence."""

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(4)):
            if i == when:
                put(world.model.last.weight)
            losses.append(world.step(batch))
        return losses

    try:
        with pytest.raises(bridge.Refused, match=r"Elsewhere\.step\(\) finds parameters in global FROZEN"):
            run(loop, bridge=True, optimizer=Elsewhere)
    finally:
        for table in FROZEN.values():
            table.clear()


def test_a_stored_program_is_of_its_own_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    trained = []
    for scale in (1.0, 0.0):
        torch.manual_seed(0)
        model = Net()
        optimizer = Attribute(model.parameters())
        optimizer.scale = scale
        before = model.last.weight.detach().clone()
        step = detente.compile(
            model, cross_entropy, optimizer, example_batch=batches()[0], certificate="none"
        )
        step(batches()[0])
        trained.append(not torch.equal(model.last.weight, before))
    assert trained == [True, False]
