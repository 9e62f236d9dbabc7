"""``AveragedModel`` moves the average of a frozen weight on, towards the weight; a step has no update for it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import detente
from detente.bridge.refusal import Refused

X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def begun() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    groups = [{"params": list(part.parameters())} for part in (model[0], model[2])]
    return model, torch.optim.SGD(groups, lr=0.5)


def test_it_is_refused_and_a_rate_of_nothing_is_the_way() -> None:
    model, optimizer = begun()
    step = detente.compile(
        model, loss, optimizer, example_batch=X, ema=0.9, certificate="none", cache=False, quiet=True
    )
    plain, other = begun()
    average = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def both() -> None:
        float(step(X))
        other.zero_grad()
        loss(plain, X).backward()
        other.step()
        average.update_parameters(plain)

    both()
    both()
    model[0].requires_grad_(False)
    for _ in range(2):
        with pytest.raises(Refused, match="average"):
            float(step(X))
    model[0].requires_grad_(True)  # nothing is lost
    both()
    for made in (optimizer, other):
        made.param_groups[0]["lr"] = 0.0
    both()
    both()
    for name, expected in average.module.state_dict().items():
        torch.testing.assert_close(step.averages()[name], expected, rtol=1e-5, atol=1e-6)


def test_what_was_frozen_before_the_first_step_trains_on() -> None:
    model, optimizer = begun()
    step = detente.compile(
        model, loss, optimizer, example_batch=X, ema=0.9, certificate="none", cache=False, quiet=True
    )
    model[0].requires_grad_(False)
    float(step(X))
    torch.testing.assert_close(step.averages()["0.weight"], model[0].weight.detach())


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = [nn.Linear(4, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4), nn.LayerNorm(4)]
        self.trunk = nn.Sequential(*(copy.deepcopy(nn.Sequential(*block)) for _ in range(6)))
        self.heads = nn.ModuleDict({task: nn.Linear(4, 2) for task in "ab"})


def of_a_task(model: Heads, batch: dict[str, object]) -> torch.Tensor:
    return model.heads[batch["task"]](torch.tanh(model.trunk(batch["x"]))).square().mean()


@pytest.mark.parametrize("tasks", ["ababab", "aaabbb"])
@pytest.mark.parametrize("form", ["unrolled", "inside"])
def test_the_average_of_a_head_that_rests_goes_on(tasks: str, form: str) -> None:
    torch.manual_seed(0)
    model = Heads()
    plain = copy.deepcopy(model)
    average = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    batches = [{"x": X * (i + 1), "task": task} for i, task in enumerate(tasks)]
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, plain))
    step = detente.compile(
        model,
        of_a_task,
        optimizer,
        example_batch=batches[0],
        ema=0.9,
        form=form,
        certificate="none",
        cache=False,
        quiet=True,
    )
    for batch in batches:
        float(step(batch))
        other.zero_grad()
        of_a_task(plain, batch).backward()
        other.step()
        average.update_parameters(plain)
    for name, expected in average.module.state_dict().items():
        torch.testing.assert_close(step.averages()[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("joins", [False, True])
def test_a_layer_that_thaws_has_had_its_average_all_along(joins: bool) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = begun()
        if joins:
            return model, torch.optim.SGD(model[2].parameters(), lr=0.5)
        model[0].requires_grad_(False)
        return model, optimizer

    (model, optimizer), (plain, other) = made(), made()
    average = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    step = detente.compile(
        model, loss, optimizer, example_batch=X, ema=0.9, certificate="none", cache=False, quiet=True
    )
    for i in range(5):
        if i == 3:
            for m, o in ((model, optimizer), (plain, other)):
                m[0].requires_grad_(True)
                if joins:
                    o.add_param_group({"params": list(m[0].parameters()), "lr": 1.0})
        float(step(X))
        other.zero_grad()
        loss(plain, X).backward()
        other.step()
        average.update_parameters(plain)
    for name, expected in average.module.state_dict().items():
        torch.testing.assert_close(step.averages()[name], expected, rtol=1e-5, atol=1e-6)
