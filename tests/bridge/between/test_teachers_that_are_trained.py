"""A teacher that the loss holds and a step of its own trains is, in every step of the student, the teacher of then."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import detente
from tests.bridge.between.loops import batches, cross_entropy, eager

F = nn.functional
Steps = tuple[Callable[[Any], Any], Callable[[Any], Any]]


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def run(
    loop: Callable[[nn.Module, nn.Module, Steps], list[float]], bridge: bool, **options: Any
) -> list[float]:
    """Both steps are made before the first runs."""
    torch.manual_seed(0)
    teacher, student = net(), net()

    def towards(model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(batch["x"]).softmax(1)
        return F.cross_entropy(model(batch["x"]), wanted)

    parts = (
        (teacher, cross_entropy, torch.optim.SGD(teacher.parameters(), lr=1.0)),
        (student, towards, torch.optim.SGD(student.parameters(), lr=0.2)),
    )
    if not bridge:
        return loop(teacher, student, (eager(*parts[0]), eager(*parts[1])))
    first, second = (
        detente.compile(*part, example_batch=batches(1)[0], cache=False, quiet=True, **options)
        for part in parts
    )
    found = loop(teacher, student, (first, second))
    assert options or all(step.settled().ok for step in (first, second))
    return found


def phases(teacher: nn.Module, student: nn.Module, steps: Steps) -> list[float]:
    return [float(steps[phase](batch)) for phase in (0, 1) for batch in batches(4)]


def validated(teacher: nn.Module, student: nn.Module, steps: Steps) -> list[float]:
    found = [float(steps[0](batch)) for batch in batches(4)]
    with torch.no_grad():
        found.append(float(cross_entropy(teacher, batches(1)[0])))
    return found + [float(steps[1](batch)) for batch in batches(4)]


def in_turns(teacher: nn.Module, student: nn.Module, steps: Steps) -> list[float]:
    return [float(step(batch)) for batch in batches(4) for step in steps]


def read_afterwards(teacher: nn.Module, student: nn.Module, steps: Steps) -> list[float]:
    """The student's step ran last, and the teacher's values are the teacher's."""
    found = in_turns(teacher, student, steps)
    found.append(float(steps[0](batches(1)[0])))
    found.append(float(steps[1](batches(1)[0])))
    return found + [float(p.detach().norm()) for part in (teacher, student) for p in part.parameters()]


def written_meanwhile(teacher: nn.Module, student: nn.Module, steps: Steps) -> list[float]:
    found = []
    for i, batch in enumerate(batches(5)):
        found += [float(step(batch)) for step in steps]
        if i % 2:
            with torch.no_grad():
                next(teacher.parameters()).mul_(0.5)
    return found


LOOPS = [phases, validated, in_turns, read_afterwards, written_meanwhile]


@pytest.mark.parametrize("certificate", ["full", "none"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_student_learns_from_the_teacher_of_now(loop: Any, certificate: str) -> None:
    options = {} if certificate == "full" else {"certificate": "none"}
    assert run(loop, True, **options) == pytest.approx(run(loop, False), rel=2e-4, abs=2e-5)


def test_a_step_that_is_made_later_trains_what_another_one_holds() -> None:
    def made_later(bridge: bool) -> list[float]:
        torch.manual_seed(0)
        teacher, student = net(), net()
        held = copy.copy(teacher)  # the same parameters

        def towards(model: Any, batch: Any) -> torch.Tensor:
            return F.mse_loss(model(batch["x"]), held(batch["x"]).detach())

        def make(model: nn.Module, loss: Any) -> Callable[[Any], Any]:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            if not bridge:
                return eager(model, loss, optimizer)
            return detente.compile(
                model, loss, optimizer, example_batch=batches(1)[0], cache=False, quiet=True
            )

        second = make(student, towards)
        found = [float(second(batches(1)[0]))]
        first = make(teacher, cross_entropy)
        return found + [float(step(batch)) for batch in batches(3) for step in (first, second)]

    assert made_later(True) == pytest.approx(made_later(False), rel=2e-4)
