"""A compiled step leaves no gradients: who clips or logs them behind it is told, and who only clears them is not."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import detente
from tests.bridge.between.loops import Net, batches, cross_entropy

SAID = "gradients are asked for behind a step"


class Own(torch.optim.SGD):
    """Reads gradients itself, as optimizers of other packages do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for p in [p for p in group["params"] if p.grad is not None]:
                    p.add_(p.grad, alpha=-group["lr"])


def compiled(optimizer: Any = torch.optim.SGD, **options: Any) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    model = Net()
    made = optimizer(model.parameters(), lr=0.1)
    how = {"cache": False, "certificate": "none", "quiet": True, **options}
    return model, made, detente.compile(model, cross_entropy, made, example_batch=batches(1)[0], **how)


def logs(model: nn.Module) -> float:
    return sum((float(p.grad.norm()) for p in model.parameters() if p.grad is not None), 0.0)


ASKING: dict[str, Callable[[nn.Module], Any]] = {
    "clips the norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "clips values": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.5),
    "logs norms": logs,
}


@pytest.mark.parametrize("asks", ASKING.values(), ids=ASKING)
def test_who_wants_values_is_told_once_and_where(asks: Callable[[nn.Module], Any]) -> None:
    model, _, step = compiled()

    def asking(model: nn.Module) -> None:
        with contextlib.suppress(RuntimeError):  # clip_grad_value_ of no gradients at all
            asks(model)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asking(model)  # nothing was stepped yet, and eager has none either
        assert not told
        for batch in batches(3):
            float(step(batch))
            asking(model)
    said = [w for w in told if SAID in str(w.message)]
    assert len(said) == 1 and said[0].filename == __file__
    assert "clip_norm=" in str(said[0].message) and "step.gradients(batch)" in str(said[0].message)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, Own], ids=["torch's", "own"])
def test_a_trainers_own_calls_ask_for_nothing(optimizer: Any) -> None:
    model, made, step = compiled(optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{SAID}.*")
        for batch in batches(3):
            made.zero_grad()
            float(step(batch))
            made.step()
            model.zero_grad()
            copy.deepcopy(model)
            model.state_dict()
            made.state_dict()


def test_gradients_of_the_users_own_backward_are_gradients() -> None:
    model, _, step = compiled()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{SAID}.*")
        for batch in batches(2):
            float(step(batch))
            cross_entropy(model, batch).backward()
            assert logs(model) > 0
