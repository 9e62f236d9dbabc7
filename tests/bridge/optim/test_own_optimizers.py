"""Optimizers that are not torch's: traced like any other, or refused where tracing would be wrong."""

import math

import pytest
import torch
from update_runs import SHAPES, error, parameters, run_bridge, run_torch

from detente import bridge
from detente.bridge.optim.rule import trace
from detente.bridge.refusal import Refused


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                average = state["average"]
                p.data.mul_(1 - group["lr"] * group["decay"])
                p.add_(torch.sign(average * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                average.mul_(b2).add_(p.grad, alpha=1 - b2)


class CountingAdam(torch.optim.Optimizer):
    """A Python int as step count, math.sqrt and max on numbers, a warm-up branch on the step: as many do."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.999)):
        super().__init__(params, {"lr": lr, "betas": betas, "warmup": 4})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["mean"].mul_(b1).add_(p.grad, alpha=1 - b1)
                state["square"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                rate = group["lr"] * math.sqrt(1 - b2 ** state["step"]) / (1 - b1 ** state["step"])
                if state["step"] < group["warmup"]:
                    rate = rate * state["step"] / group["warmup"]
                p.addcdiv_(
                    state["mean"], state["square"].sqrt().add_(max(1e-8, group["lr"] * 1e-6)), value=-rate
                )


class Anchored(torch.optim.Optimizer):
    """State that begins as a copy of the parameter."""

    def __init__(self, params, lr=0.1, pull=0.05):
        super().__init__(params, {"lr": lr, "pull": pull})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "anchor" not in state:
                    state["anchor"] = p.clone()
                p.sub_(p.grad, alpha=group["lr"])
                p.lerp_(state["anchor"], group["pull"])


class Peeking(torch.optim.Optimizer):
    """Needs a tensor's value as a Python int."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                for _ in range(int(p.grad.sum().item())):
                    p.sub_(p.grad, alpha=group["lr"])


@pytest.mark.parametrize(
    "make",
    [lambda p: Lion(p, 0.01, decay=0.1), Lion, CountingAdam, Anchored],
    ids=["lion-decay", "lion", "counting-adam", "anchored"],
)
def test_ten_steps_equal_torch(make):
    params = parameters(SHAPES, torch.float32)
    optimizer = make(list(params.values()))
    rule = trace(optimizer, params.items())
    values, state = run_bridge(rule, optimizer, params, SHAPES, torch.float32, range(10))
    run_torch(optimizer, params, SHAPES, torch.float32, range(10))
    for name, param in params.items():
        assert error(values[name], param) <= 1e-6
    live = dict(optimizer.state[params["vector"]])
    rule.write_state(optimizer, state, params)
    for key, value in optimizer.state[params["vector"]].items():
        assert type(value) is type(live[key])
        assert value == live[key] if isinstance(value, int) else error(value.numpy(), live[key]) <= 1e-6


def test_a_value_as_a_python_number_is_refused():
    params = parameters(SHAPES, torch.float32)
    with pytest.raises(Refused, match=r"Python float\n.*test_own_optimizers.py:\d+"):
        trace(Peeking(list(params.values())), params.items())


class TensorOfANumber(torch.optim.Optimizer):
    """Asks a tensor that it has just made of a number for that number, rounded as the tensor's dtype has it."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-float(torch.tensor(0.1)))


def test_a_tensor_made_of_a_number_has_a_value():
    torch.manual_seed(0)
    model, x = torch.nn.Linear(3, 2).double(), torch.ones(2, 3, dtype=torch.float64)
    start = model.weight.detach().clone()
    step = bridge.compile(
        model, lambda m, x: m(x).sum(), TensorOfANumber(model.parameters()), example_batch=x, cache=False
    )
    step(x)
    step.sync_to_torch()
    assert float((start - model.weight.detach() - 2 * float(torch.tensor(0.1))).abs().max()) < 1e-15
