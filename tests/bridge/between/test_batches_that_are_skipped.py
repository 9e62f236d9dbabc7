"""A loop that goes on behind a batch that raises: nothing was updated in that step, as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import detente
from tests.bridge.between.loops import Net, World, batches, cross_entropy, eager, equal

F = nn.functional


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(compiled again|detente).*")
        yield


def with_bad(at: int, value: int = 7, count: int = 6) -> list[dict[str, torch.Tensor]]:
    made = batches(count)
    made[at]["y"][:4] = value
    return made


def moments(world: World) -> list[float]:
    state = world.optimizer.state_dict()["state"]
    return [float(torch.as_tensor(v).double().sum()) for held in state.values() for v in held.values()]


def skipping(bad: int, kinds: Any = IndexError, value: int = 7) -> Callable[[World], list[float]]:
    def loop(world: World) -> list[float]:
        found, skipped = [], 0
        for batch in with_bad(bad, value):
            try:
                found.append(float(world.step(batch)))
            except kinds:
                skipped += 1
        assert skipped == 1
        return [*found, *moments(world)]

    return loop


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "first step apart": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, nesterov=False),
}


@pytest.mark.parametrize("bad", [0, 3], ids=["the first", "a later one"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_nothing_was_updated(optimizer: str, bad: int) -> None:
    step = equal(skipping(bad), optimizer=OPTIMIZERS[optimizer]).more["compiled"]
    assert step.settled().ok  # of a step that nobody skipped


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_with_and_without_kernels(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENTE_KERNELS", kernels)
    equal(skipping(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # No bias in front of BatchNorm: its gradient is rounding alone, and Adam makes whole steps of that.
        self.one, self.two, self.norm = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.norm(self.two(torch.relu(self.one(x))))


def deep() -> nn.Module:
    return nn.Sequential(*(Layer() for _ in range(6)), nn.Linear(6, 3))


@pytest.mark.parametrize("form", ["unrolled", "rolled", "rolled+full"])
def test_in_every_form(form: str) -> None:
    """Statistics are written in front of the loss, which raises."""
    equal(skipping(2), build=deep, form=form)


def test_in_the_form_that_updates_inside() -> None:
    build = lambda: nn.Sequential(*(nn.Linear(6, 6) for _ in range(8)), nn.Linear(6, 3))  # noqa: E731
    equal(skipping(2), build=build, form="inside")


def test_with_an_average_and_clipping() -> None:
    found = []
    for at in (None, 2):
        torch.manual_seed(0)
        model = Net()
        adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
        how = {"ema": 0.9, "clip_norm": 0.5, "cache": False, "certificate": "none"}
        step = detente.compile(model, cross_entropy, adam, example_batch=batches(1)[0], **how)
        for i, batch in enumerate(batches(5) if at is None else with_bad(at, count=5)):
            if i == 2 and at is None:
                model.eval()  # (statistics are written in front of what raises)
                model.norm.train()
                with torch.no_grad():
                    model(batch["x"])
                model.train()
                continue
            try:
                float(step(batch))
            except IndexError:
                assert i == at
        found.append({name: value.clone() for name, value in step.averages().items()})
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-5, atol=1e-6)


def test_of_micro_batches_the_first_that_raises_is_the_last() -> None:
    def compiled(model: nn.Module, optimizer: Any) -> Callable[[Any], float]:
        step = detente.compile(
            model, cross_entropy, optimizer, example_batch=batches(1)[0], accumulate=3, cache=False, seed=0
        )
        return lambda batch: float(step(batch))

    def plain(model: nn.Module, optimizer: Any) -> Callable[[Any], float]:
        def step(batch: Any) -> float:
            optimizer.zero_grad()
            total = 0.0
            for i in range(3):
                part = {key: tensor[4 * i : 4 * i + 4] for key, tensor in batch.items()}
                value = cross_entropy(model, part) / 3
                value.backward()
                total += float(value.detach())
            optimizer.step()
            return total

        return step

    def run(make: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = Net()
        step = make(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        found = []
        for i, batch in enumerate(batches(5)):
            if i == 2:
                batch["y"][4:6] = 7  # of the second part
            try:
                found.append(step(batch))
            except IndexError:
                assert i == 2
        return found, {name: tensor.clone() for name, tensor in model.state_dict().items()}

    ours, theirs = run(compiled), run(plain)
    assert ours[0] == pytest.approx(theirs[0], rel=2e-4)
    for name, tensor in theirs[1].items():
        torch.testing.assert_close(ours[1][name], tensor, rtol=2e-4, atol=5e-5)


def checks_first(model: Any, batch: Any) -> torch.Tensor:
    if (batch["y"] < 0).any():
        raise ValueError("a row without a label")
    return cross_entropy(model, batch)


def checks_last(model: Any, batch: Any) -> torch.Tensor:
    value = F.cross_entropy(model(batch["x"]), batch["y"].clamp_min(0))
    assert (batch["y"] >= 0).all()
    return value


@pytest.mark.parametrize(
    ("loss", "kind"), [(checks_first, ValueError), (checks_last, AssertionError)], ids=["in front", "behind"]
)
def test_a_check_raises_what_it_says_and_statistics_are_as_in_eager(loss: Any, kind: Any) -> None:
    equal(skipping(3, kind, -1), loss=lambda world: loss)


class Counts(torch.optim.SGD):
    """Keeps a number in its group that each step moves on."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.param_groups[0]["turns"] = 1.0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        with torch.no_grad():
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] / group["turns"])
        group["turns"] += 1.0


def test_a_number_that_python_keeps_of_the_optimizer_stays() -> None:
    def loop(world: World) -> list[float]:
        return [*skipping(3)(world), world.optimizer.param_groups[0]["turns"]]

    equal(loop, optimizer=Counts)


def test_eager_is_what_it_is_compared_with() -> None:
    torch.manual_seed(0)
    model = Net()
    step = eager(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1))
    before = model.norm.running_mean.clone(), model.last.weight.detach().clone()
    with pytest.raises(IndexError):
        step(with_bad(0)[0])
    assert not torch.equal(before[0], model.norm.running_mean)
    assert torch.equal(before[1], model.last.weight)
