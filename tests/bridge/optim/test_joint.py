"""Optimizers that are traced as a whole: one parameter depends on others, or on what a step keeps elsewhere.

Each is a small optimizer of one habit, for twenty steps and more beside eager, with two groups, a parameter that is
frozen later, a resume, a count that is far on; docs/results/third-party-optimizers.md has the real ones.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import deque
from typing import Any

import pytest
import torch

from detente import bridge
from tests.bridge.optim.test_others_optimizers import Net, Plain, given, loss
from tests.sampled import sampled


class Hidden(Plain):
    """Keeps a count where nobody looks."""

    def begin(self, group: dict[str, Any]) -> None:
        self._calls = getattr(self, "_calls", 0) + 1

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.add_(p.grad, alpha=-group["lr"] / self._calls)


class InAList(Plain):
    def __init__(self, params: Any) -> None:
        self.seen: Any = deque([1.0], maxlen=3)
        super().__init__(params)

    def begin(self, group: dict[str, Any]) -> None:
        self.seen.append(self.seen[-1] * 0.9)

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.add_(p.grad, alpha=-group["lr"] * self.seen[-1])


class Estimates(Plain):
    """A step size from the gradients, in the group (D-adaptation)."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, d=1.0)

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        group["d"] = max(group["d"], p.grad.norm().item())
        p.add_(p.grad, alpha=-group["lr"] * group["d"])


class OncePerParameter(Plain):
    def __init__(self, params: Any) -> None:
        super().__init__(params, k=0)

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        group["k"] += 1
        p.add_(p.grad, alpha=-group["lr"] / group["k"])


class AsksAnother(Plain):
    """Whether the one before had a large gradient decides about the next."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            scale = 1.0
            for p in reversed(group["params"]):
                p.add_(p.grad, alpha=-group["lr"] * scale)
                if p.grad.abs().max() > 0.1:
                    scale *= 0.5


class Wraps(Plain):
    def __init__(self, params: Any) -> None:
        params = list(params)
        super().__init__(params)
        self.inner = torch.optim.SGD(params, lr=0.1)

    def step(self, closure: Any = None) -> None:
        self.inner.step()


class GlobalNorm(Plain):
    """One norm over all gradients of all groups."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.sqrt(sum(p.grad.square().sum() for p in held))
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group.get("weight_decay", 0.0))
                    p.add_(p.grad / (norm + 0.1), alpha=-group["lr"])


class FirstGroupsRate(Plain):
    """Every group goes by the first one's rate."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.add_(p.grad, alpha=-self.param_groups[0]["lr"])


class Lists(Plain):
    """A list of tensors, a dictionary by number, a nested object."""

    class Box:
        def __init__(self, p: torch.Tensor) -> None:
            self.mean, self.name, self.count = torch.zeros_like(p), "mean", 0

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["kept"] = [torch.zeros_like(p), None]
            state["by"] = {0.5: torch.zeros_like(p), 0.9: torch.zeros_like(p)}
            state["box"] = Lists.Box(p)
        state["kept"][0].lerp_(p.grad, 0.3)
        for beta, average in state["by"].items():
            average.mul_(beta).add_(p.grad)
        state["box"].count += 1
        state["box"].mean.add_(p.grad / state["box"].count)
        update = state["kept"][0] + sum(state["by"].values()) + state["box"].mean
        p.add_(update, alpha=-0.1 * group["lr"])


class EveryThird(Plain):
    """A large step on each third, and another on the first; counted on the optimizer."""

    calls = 0

    def begin(self, group: dict[str, Any]) -> None:
        self.calls += 1

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        state["t"] = state.get("t", 0) + 1
        if state["t"] == 1:
            state["slow"] = p.clone()
        if state["t"] % 3 == 0:
            state["slow"].lerp_(p, 0.5)
            p.copy_(state["slow"])
        p.add_(p.grad, alpha=-group["lr"] / self.calls**0.5)


class Warms(Plain):
    """A schedule in its own step, with a turn after the twelfth."""

    def begin(self, group: dict[str, Any]) -> None:
        group["k"] = group.get("k", 0) + 1
        group["scheduled"] = group["lr"] * (min(1.0, group["k"] / 5) if group["k"] <= 12 else 0.3)

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        self.state[p].setdefault("deep", {"m": [torch.zeros_like(p)]})["deep" if False else "m"][0].lerp_(
            p.grad, 0.5
        )
        p.add_(self.state[p]["deep"]["m"][0], alpha=-group["scheduled"])


class TensorInGroup(Plain):
    """A sum over all parameters as a tensor of the group, and a number made of it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group.setdefault("seen", torch.zeros(1, dtype=torch.float64))
            for p in group["params"]:
                if p.grad is not None:
                    group["seen"].add_(p.grad.square().sum())
            group["d"] = max(group.get("d", 0.0), group["seen"].item())
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] / (1 + group["d"]))


class BesideParameters(Plain):
    """A count in the state that is no parameter's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if "k" not in self.state:
            self.state["k"] = torch.tensor([0])
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] * math.pow(self.state["k"] + 1, 0.5))
        self.state["k"] += 1


class BornAtRandom(Plain):
    """Draws its first moment."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["v"] = [torch.randn_like(p) * 1e-2]
        state["v"][0].lerp_(p.grad, 0.5)
        p.add_(state["v"][0], alpha=-group["lr"])


class Looks(torch.optim.Optimizer):
    """Slow weights around another optimizer (Lookahead)."""

    def __init__(self, params: Any, k: int = 4) -> None:
        self.optimizer = torch.optim.Adam(params, lr=0.02)
        self.k, self.counter = k, 0
        self.slow: dict[Any, torch.Tensor] = {}

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.optimizer.step()
        self.counter += 1
        if self.counter % self.k == 0:
            for group in self.param_groups:
                for p in group["params"]:
                    slow = self.slow.setdefault(p, p.clone())
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)


KINDS = [
    Hidden, InAList, Estimates, OncePerParameter, AsksAnother, Wraps, GlobalNorm, FirstGroupsRate, Lists, EveryThird,
    Warms, TensorInGroup, BesideParameters, BornAtRandom, Looks,
]  # fmt: skip
STEPS = 21


def params_of(kind: Any, model: Any, groups: int) -> Any:
    if groups == 1:
        return list(model.parameters())
    return [
        {"params": list(model.first.parameters()), "lr": 0.04, "weight_decay": 0.1},
        {"params": list(model.second.parameters()), "lr": 0.03, "weight_decay": 0.0},
    ]


def eager(model: Any, optimizer: Any, batch: Any) -> float:
    optimizer.zero_grad()
    value = loss(model, batch)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(value.detach())


def same(mine: Any, theirs: Any) -> None:
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11)


def stepped(model: Any, optimizer: Any) -> Any:
    return bridge.compile(model, loss, optimizer, example_batch=given()[0], cache=False, quiet=True)


@pytest.mark.parametrize("groups", sampled([1, 2], 2))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_trains_as_eager_does(kind: Any, groups: int) -> None:
    theirs, mine = Net(), Net()
    plain, optimizer = (kind(params_of(kind, model, groups)) for model in (theirs, mine))
    torch.manual_seed(5)
    wanted = [eager(theirs, plain, batch) for batch in given(STEPS)]
    torch.manual_seed(5)
    step = stepped(mine, optimizer)
    torch.manual_seed(5)
    found = [float(step(batch)) for batch in given(STEPS)]
    assert found == pytest.approx(wanted, rel=1e-9)
    step.sync_to_torch()
    same(mine, theirs)
    for one, two in zip(plain.param_groups, optimizer.param_groups, strict=True):
        numbers = [{k: float(v) for k, v in g.items() if isinstance(v, int | float)} for g in (one, two)]
        assert numbers[0] == pytest.approx(numbers[1])


@pytest.mark.parametrize(
    "kind", sampled([GlobalNorm, Lists, EveryThird, TensorInGroup], 2), ids=lambda kind: kind.__name__
)
def test_a_schedule_a_frozen_layer_and_a_resume(kind: Any) -> None:
    theirs, mine = Net(), Net()
    plain, optimizer = kind(theirs.parameters()), kind(mine.parameters())
    step = stepped(mine, optimizer)
    for i, batch in enumerate(given(16)):
        if i == 5:
            plain.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.02
        if i == 8:
            for model in (theirs, mine):
                model.first.bias.requires_grad_(False)
        if i == 11:  # from what a loop would have saved
            step.sync_to_torch()
            again = (
                copy.deepcopy(mine.state_dict()),
                copy.deepcopy(optimizer.__dict__["state"]),
                optimizer.param_groups,
            )
            assert len(again[1]) == len(plain.state)
            step = stepped(mine, optimizer)
        assert float(step(batch)) == pytest.approx(eager(theirs, plain, batch), rel=1e-9), i
    step.sync_to_torch()
    same(mine, theirs)


def test_a_count_that_is_far_on() -> None:
    theirs, mine = Net(), Net()
    plain, optimizer = Warms(theirs.parameters()), Warms(mine.parameters())
    plain.param_groups[0]["k"] = optimizer.param_groups[0]["k"] = 9
    step = stepped(mine, optimizer)
    for batch in given(8):
        assert float(step(batch)) == pytest.approx(eager(theirs, plain, batch), rel=1e-9)
    assert plain.param_groups[0]["k"] == optimizer.param_groups[0]["k"] == 17


def test_a_branch_that_comes_again_is_not_compiled_again() -> None:
    model = Net()
    step, seen = stepped(model, EveryThird(model.parameters())), set()
    for i, batch in enumerate(given(20)):
        step(batch)
        if i > 6:
            seen.add(id(step.programs[0]))
    assert len(seen) == 2


def test_what_a_step_computes_for_its_group_is_there_at_once() -> None:
    theirs, mine = Net(), Net()
    plain, optimizer = Estimates(theirs.parameters()), Estimates(mine.parameters())
    step = stepped(mine, optimizer)
    for batch in given(4):
        step(batch)
        eager(theirs, plain, batch)
        assert optimizer.param_groups[0]["d"] == pytest.approx(plain.param_groups[0]["d"], rel=1e-12)
    plain.param_groups[0]["d"] = optimizer.param_groups[0]["d"] = 3.0  # and what is written there counts
    assert float(step(given()[4])) == pytest.approx(eager(theirs, plain, given()[4]), rel=1e-12)
    step.sync_to_torch()
    same(mine, theirs)


class Lends(Plain):
    """Keeps the parameter itself as its anchor, where a copy was meant."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        self.state[p].setdefault("anchor", [p.data])
        p.add_(p.grad + 0.1 * (p - self.state[p]["anchor"][0]), alpha=-group["lr"])


def test_two_tensors_of_one_memory_are_refused() -> None:
    model = Net()
    with pytest.raises(bridge.Refused, match="two tensors in one memory"):
        stepped(model, Lends(model.parameters()))


def test_a_parameter_without_a_gradient_is_refused() -> None:
    model = Net()
    model.unused = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    with pytest.raises(bridge.Refused, match="unused has no gradient"):
        stepped(model, GlobalNorm(model.parameters()))


class Turns(Plain):
    """Its eigenvectors are computed anew on every fifth step."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if p.dim() == 2:
            state["t"] = state.get("t", 0) + 1
            state.setdefault("side", torch.eye(len(p), dtype=p.dtype)).add_(p.grad @ p.grad.T)
            if state["t"] % 5 == 1:
                state["basis"] = [torch.linalg.eigh(state["side"])[1]]
            p.add_(state["basis"][0] @ torch.tanh(state["basis"][0].T @ p.grad), alpha=-group["lr"])
        else:
            super().one(p, group)


def test_eigenvectors_are_torchs() -> None:
    theirs, mine = Net(), Net()
    plain, optimizer = Turns(theirs.parameters()), Turns(mine.parameters())
    step = stepped(mine, optimizer)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for batch in given(12):
            assert float(step(batch)) == pytest.approx(eager(theirs, plain, batch), rel=1e-9)
    assert any("torch takes" in str(w.message) and "eigenvectors" in str(w.message) for w in said)
    step.sync_to_torch()
    same(mine, theirs)


class Around:
    """A wrapper that leaves out the constructor of ``torch.optim.Optimizer`` and hands on the inner tables."""

    def __init__(self, base: Any) -> None:
        self.base, self.param_groups, self.defaults, self.state = (
            base,
            base.param_groups,
            base.defaults,
            base.state,
        )
        self.count = 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in base.param_groups]
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}


class LooksAround(Around, torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.base.step()
        self.count += 1
        if self.count % 3 == 0:
            for group, kept in zip(self.param_groups, self.slow, strict=True):
                for p, q in zip(group["params"], kept, strict=True):
                    q.add_(p - q, alpha=0.5)
                    p.copy_(q)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)


@pytest.mark.parametrize("inner", [torch.optim.SGD, torch.optim.Adam], ids=["SGD", "Adam"])
def test_a_wrapper_that_hands_on_the_table_of_the_inner_one_keeps_what_was_trained(inner: Any) -> None:
    """Where a branch turned, the table of the inner optimizer came back to its place, was taken for one that somebody
    had put there, and the slow weights of before were read from it."""
    theirs, mine = Net(), Net()
    plain, optimizer = (LooksAround(inner(model.parameters(), lr=0.05)) for model in (theirs, mine))
    wanted = [eager(theirs, plain, batch) for batch in given(9)]
    step = stepped(mine, optimizer)
    assert [float(step(batch)) for batch in given(9)] == pytest.approx(wanted, rel=1e-9)
    step.sync_to_torch()
    same(mine, theirs)
