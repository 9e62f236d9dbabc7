"""A mistake in what ``detente.compile`` is given is named by its argument; ``bridge.check`` says what compile would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import detente
from detente import bridge

BATCH = (torch.linspace(-1, 1, 24).view(4, 6), torch.tensor([0, 2, 1, 0]))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def made(**given: Any) -> bridge.Step:
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    how = {"example_batch": BATCH, "quiet": True, "certificate": "none", "cache": False, **given}
    parts = (how.pop("model", model), how.pop("loss", loss), how.pop("optimizer", sgd))
    return bridge.compile(*parts, **how)


MISTAKES = {
    "seed='0'": ({"seed": "0"}, TypeError, "seed is '0' .*an integer"),
    "seed=0.5": ({"seed": 0.5}, TypeError, "seed is 0.5 .*an integer"),
    "accumulate='2'": ({"accumulate": "2"}, TypeError, "accumulate is '2' .*an integer"),
    "accumulate=1.5": ({"accumulate": 1.5}, TypeError, "accumulate is 1.5 .*an integer"),
    "accumulate=0": ({"accumulate": 0}, ValueError, "accumulate is 0; .*at least 1"),
    "clip_norm='1'": ({"clip_norm": "1"}, TypeError, "clip_norm is '1' .*a number"),
    "clip_value=[1]": ({"clip_value": [1]}, TypeError, r"clip_value is \[1\] .*a number"),
    "ema=True is a decay": ({"ema": 1.5}, ValueError, "ema is a decay"),
    "matmul='banana'": ({"matmul": "banana"}, ValueError, "matmul is 'banana'; it is 'highest'"),
    "certificate='most'": ({"certificate": "most"}, ValueError, "certificate is 'most'; it is one of 'full'"),
    "nonfinite='ignore'": ({"nonfinite": "ignore"}, ValueError, "nonfinite is 'ignore'; it is one of"),
    "tune='later'": ({"tune": "later"}, ValueError, "tune is 'later'; it is True, False or 'background'"),
    "share=a module": ({"share": net()}, TypeError, "share is a Sequential; it is another step"),
    "a function as the model": ({"model": loss}, TypeError, "model is a function; it is a torch.nn.Module"),
    "a class as the model": ({"model": nn.Linear}, TypeError, "model is the class Linear"),
    "a loss that is none": (
        {"loss": "mse"},
        TypeError,
        r"loss is a str; it is a function loss\(model, batch\)",
    ),
    "an optimizer's name": ({"optimizer": "adam"}, TypeError, "optimizer must be a torch.optim.Optimizer"),
    "a criterion": ({"loss": nn.CrossEntropyLoss()}, bridge.Refused, "CrossEntropyLoss takes a prediction"),
    "a function of torch's": ({"loss": F.cross_entropy}, bridge.Refused, "cross_entropy takes a prediction"),
}


@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_by_its_argument(case: Any) -> None:
    given, kind, says = case
    with pytest.raises(kind, match=says):
        made(**given)


@pytest.mark.parametrize("name", [name for name in MISTAKES if "model" in name or "loss" in name])
def test_the_other_doors_say_the_same(name: str) -> None:
    given, kind, says = MISTAKES[name]
    model, function = given.get("model", net()), given.get("loss", loss)
    with pytest.raises(kind, match=says):
        detente.functional(model, function, BATCH)
    with pytest.raises(kind, match=says):
        bridge.check(model, function, BATCH)


def test_a_criterion_is_a_reason_of_check() -> None:
    for criterion in (nn.MSELoss(), F.mse_loss):
        (reason,) = bridge.check(net(), criterion, BATCH)
        assert reason.code == "loss" and "loss(model, batch)" in reason.what
    with pytest.raises(bridge.Refused, match="mse_loss takes a prediction"):
        detente.functional(net(), F.mse_loss, BATCH)
    with pytest.raises(ValueError, match="matmul is 'banana'"):
        detente.functional(net(), loss, BATCH, matmul="banana")


class Asks(nn.CrossEntropyLoss):
    """A criterion of one's own that is a loss."""

    def forward(self, model: Any, batch: Any) -> torch.Tensor:  # type: ignore[override]
        return super().forward(model(batch[0]), batch[1])


def test_what_is_a_number_is_taken() -> None:
    step = made(
        loss=Asks(),
        seed=np.int64(3),
        accumulate=np.int32(2),
        clip_norm=1,
        clip_value=torch.tensor(0.5),
        ema=np.float32(0.5),
        matmul="tensorfloat32",
    )
    options = step.options
    assert (options.seed, options.accumulate, options.clip_norm, options.clip_value) == (3, 2, 1.0, 0.5)
    float(step(BATCH))


def test_tune_1_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    assert made(tune=1, cache=True).choice.measured
    assert made(tune=0).options.tune is False


class Drifting(torch.optim.Optimizer):
    """Draws its state in its first step, which torch takes."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["drift"] = torch.randn_like(p) * 1e-3
                p.add_(p.grad + state["drift"], alpha=-group["lr"])


class Wandering(Drifting):
    """Draws in every step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(torch.randn_like(p), alpha=-group["lr"])


def nothing(model: nn.Module, batch: Any) -> torch.Tensor:
    return loss(model, batch).detach()


ASKED = {
    "fine": (loss, torch.optim.AdamW),
    "a loss that trains nothing": (nothing, torch.optim.AdamW),
    "an optimizer that draws first": (loss, Drifting),
    "an optimizer that draws always": (loss, Wandering),
    "both": (nothing, Wandering),
    "LBFGS": (loss, torch.optim.LBFGS),
}


@pytest.mark.parametrize("case", ASKED.values(), ids=ASKED.keys())
def test_check_says_what_compile_refuses(case: Any) -> None:
    function, kind = case
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer, random = kind(model.parameters(), lr=0.1), torch.get_rng_state()
    found = bridge.check(model, function, BATCH, optimizer)
    assert torch.equal(torch.get_rng_state(), random) and not optimizer.state
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    try:
        made(model=model, loss=function, optimizer=optimizer)
        refused: set[str] = set()
    except bridge.Refused as error:
        refused = {reason.code for reason in error.reasons}
    assert {reason.code for reason in found} == refused
