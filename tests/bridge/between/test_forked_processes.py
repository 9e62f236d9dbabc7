"""Processes that are forked between two steps: they read what eager's would, and nothing of JAX's runs there."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente import bridge
from detente.bridge.certify import certify
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on Windows"),
    pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*multi-threaded, use of fork"),
]
SECONDS = 30  # a child that waits for JAX waits for ever


def in_a_child(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in a forked process, as JSON; what it raised as "Error: ...", and "stuck"."""
    told, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)  # ends it
        torch.set_num_threads(1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                said = json.dumps(work())
        except BaseException as error:
            said = json.dumps(f"{type(error).__name__}: {error}")
        os.write(say, said.encode())
        os._exit(0)
    os.close(say)
    with os.fdopen(told) as text:
        said = text.read()
    os.waitpid(pid, 0)
    return json.loads(said) if said else "stuck"


class Centred(nn.Module):
    """Keeps the mean of what it saw, which its data set reads."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.5)
        return self.last(x)


class Rows(torch.utils.data.Dataset):
    def __init__(self, model: nn.Module, number: int) -> None:
        self.model, self.number = model, number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        batch = batches()[i]
        return {"x": batch["x"] - self.model.mean, "y": batch["y"]}


@pytest.mark.parametrize("number", [1, 3])
def test_a_loaders_worker_reads_a_buffer(number: int) -> None:
    """One batch an epoch: the certificate of the first step is still open when the second worker is forked."""

    def loop(world: World) -> list[float]:
        losses = []
        for _ in range(2):
            loader = torch.utils.data.DataLoader(
                Rows(world.model, number),
                batch_size=None,
                num_workers=1,
                timeout=SECONDS,
                multiprocessing_context="fork",
            )
            losses += [world.step(batch) for batch in loader]
        return losses

    equal(loop, build=Centred)


def test_a_child_reads_weights_moments_and_states() -> None:
    def looked(world: World) -> list[float]:
        weight, state = world.model.last.weight, world.optimizer.state_dict()["state"]
        moments = [float(one["exp_avg"].norm()) for one in state.values()]
        return [float(weight.detach().norm()), float(weight.data.norm()), *moments]

    def loop(world: World) -> list[float]:
        found = []
        for i, batch in enumerate(batches(5)):
            found.append(world.step(batch))
            if i in (1, 2, 4):
                found += in_a_child(lambda: looked(world))
        return found

    equal(loop)


def test_a_child_that_writes_changes_its_own() -> None:
    def write(world: World) -> float:
        with torch.no_grad():
            world.model.last.weight.data.fill_(7.0)
            world.optimizer.state.clear()
        return float(world.model.last.weight.norm())

    def loop(world: World) -> list[float]:
        losses = []
        for batch in batches(4):
            losses += [world.step(batch), in_a_child(lambda: write(world))]
        return losses

    equal(loop)


def small() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(
        model, cross_entropy, optimizer, example_batch=batches()[0], seed=3, cache=False, certificate="none"
    )
    return model, step


CALLS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "step": lambda model, step: step(batches()[0]),
    "place": lambda model, step: step.place(batches()[0]),
    "sync_to_torch": lambda model, step: step.sync_to_torch(),
    "state_dict": lambda model, step: step.state_dict(),
    "evaluate": lambda model, step: step.evaluate(batches()[0]),
    "eager": lambda model, step: step.eager(batches()[0]),
    "compile": lambda model, step: small(),
}


def test_nothing_compiled_runs_in_a_child() -> None:
    model, step = small()
    step(batches()[0])
    for name, call in CALLS.items():
        said = in_a_child(lambda call=call: call(model, step))
        assert said.startswith("Refused") and "[fork]" in said and "spawn" in said, f"{name}: {said}"
    # A step that goes there has nothing to write back.
    assert in_a_child(step.__del__) is None
    assert float(step(batches()[1])) > 0


def test_a_fork_inside_of_a_call_is_told_that_it_is_older() -> None:
    """The loss forks, in the eager step of a certificate say: the live module is not to be touched there."""
    model, step = small()
    for batch in batches(2):
        step(batch)

    def inside(batch: Any, placed: Any) -> Any:
        with step._away():
            return in_a_child(look)

    def look() -> list[str]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model.last.weight.norm()
            model.last.weight.norm()
        return [str(one.message) for one in told if "forked" in str(one.message)]

    step._step = inside
    said = step(batches()[0])
    del step._step
    assert len(said) == 1 and "what is read here is older" in said[0]


def test_a_certificate_that_fails_at_a_fork_is_raised_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = certify.certify

    def broken(measured: Any, *rest: Any) -> Any:
        bias = {"last.bias": measured.gradients["last.bias"] * 1.01}
        wrong = dataclasses.replace(measured, gradients=dict(measured.gradients) | bias)
        return real(wrong, *rest[:-1], None)

    torch.manual_seed(0)
    model = Net()
    before = copy.deepcopy(model.state_dict())
    step = detente.compile(
        model,
        cross_entropy,
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=batches()[0],
        cache=False,
    )
    step(batches()[0])
    monkeypatch.setattr(certify, "certify", broken)
    read = in_a_child(lambda: float(model.last.weight.norm()))
    assert read == pytest.approx(
        float(before["last.weight"].norm())
    )  # of before the step that is not trusted
    with pytest.raises(bridge.Refused, match="certificate"):
        step(batches()[1])


def test_a_fork_without_a_step_behind_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, step = small()
    step(batches()[0])
    written = []
    real = step._write_back
    monkeypatch.setattr(step, "_write_back", lambda **how: (written.append(how), real(**how)))
    for _ in range(3):
        assert in_a_child(lambda: 1) == 1
    assert len(written) == 1
