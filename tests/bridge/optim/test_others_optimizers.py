"""What optimizers of other packages do that torch's own do not: attributes, counts in their groups, state that is None.

Each is a small optimizer of that habit, for several steps beside eager; docs/results/third-party-optimizers.md has the
real ones.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge


class Plain(torch.optim.Optimizer):
    """Gradient descent; subclasses say what else they do."""

    def __init__(self, params: Any, lr: float = 0.05, **more: Any) -> None:
        super().__init__(params, {"lr": lr, **more})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            self.begin(group)
            for p in group["params"]:
                if p.grad is not None:
                    self.one(p, group)

    def begin(self, group: dict[str, Any]) -> None:
        pass

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.add_(p.grad, alpha=-group["lr"])


class Attribute(Plain):
    """Its step reads what its constructor has put on it."""

    def __init__(self, params: Any) -> None:
        self.decoupled, self.more = 0.1, {"factor": [0.5]}
        super().__init__(params)

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.mul_(1 - self.decoupled * self.more["factor"][0] * group["lr"])
        super().one(p, group)


class Counts(Plain):
    """Its group has a count from the first step on."""

    def begin(self, group: dict[str, Any]) -> None:
        group["step"] = group.get("step", 0) + 1

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.add_(p.grad, alpha=-group["lr"] / (1 - 0.9 ** group["step"]))


class Averages(Plain):
    """As schedule-free optimizers do: a count, a largest rate and a sum of weights, in the group."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, k=0, weight_sum=0.0, lr_max=-1.0)

    def begin(self, group: dict[str, Any]) -> None:
        lr = group["lr_max"] = max(group["lr"], group["lr_max"])
        weight = (group["k"] + 1) * lr**2
        group["weight_sum"] += weight
        self.share = weight / group["weight_sum"]
        group["k"] += 1

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["z"] = p.clone()
        state["z"].add_(p.grad, alpha=-group["lr"])
        share = (group["k"]) * group["lr_max"] ** 2 / group["weight_sum"]
        p.lerp_(state["z"], share)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        del self.share


class Nothing(Plain):
    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        self.state[p].setdefault("momentum_buffer", None)
        super().one(p, group)


class Averaging(Plain):
    """Three copies of the parameter in its state, which begin alike (schedule-free, as its authors write it)."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["z"], state["x"], state["y"] = p.clone(), p.clone(), p.clone()
        state["z"].add_(p.grad, alpha=-group["lr"])
        state["x"].mul_(0.5).add_(state["z"], alpha=0.5)
        state["y"].copy_(state["x"] * 0.9 + state["z"] * 0.1)
        p.copy_(state["y"])


class Measures(Plain):
    """A number in its group is None until the first step has measured it; the second one uses it."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, step=0, gamma=None)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        group["step"] += 1
        rate = group["lr"] * (group["gamma"] if group["step"] > 1 else 1.0)
        squared = 0.0
        for p in group["params"]:
            p.add_(p.grad, alpha=-rate)
            squared += p.square().sum()
        group["gamma"] = 1.0 / math.sqrt(squared / 40.0)


class Divides(Plain):
    """Its sum of weights is 0 at first, and it catches what Python then raises (schedule-free with a warm-up)."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, k=0, total=0.0)

    def begin(self, group: dict[str, Any]) -> None:
        weight = group["lr"] * max(0.0, group["k"] - 1.0)
        group["total"] = group["total"] + weight
        try:
            share = weight / group["total"]
        except ZeroDivisionError:
            share = 0.5
        group["share"] = share
        group["k"] = group["k"] + 1

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.add_(p.grad, alpha=-group["lr"] * (0.1 + group["share"]))


class Table(Plain):
    """A list in its group, indexed by the count of a parameter (torch-optimizer's RAdam)."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, buffer=[None, None])

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        state["step"] = state.get("step", 0) + 1
        at = int(state["step"] % 2)
        if group["buffer"][at] != state["step"]:
            group["buffer"][at] = state["step"]
        p.add_(p.grad, alpha=-group["lr"] / (1 + at))


class Soft(Plain):
    """Operators that take a number which is only known at run time."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        g = nn.functional.softplus(p.grad, beta=50 * group["lr"], threshold=2.0)
        if p.dim() == 2:
            g = (
                g
                + torch.baddbmm(p[None], p.grad[None], p.grad[None], beta=group["lr"], alpha=1 - group["lr"])[
                    0
                ]
            )
        p.add_(g, alpha=-group["lr"])


class AsksForAGradient(Plain):
    """It asks its parameters what the traced ones have to answer too."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        if p.requires_grad and not p.grad.requires_grad:
            super().one(p, group)


class AsksItself(Plain):
    """Each parameter asks about itself; none about another (AdamP)."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        lengths = p.norm().clamp_min_(torch.full_like(p.norm(), 1e-3))
        update = p.grad
        if (p * p.grad).sum().abs() / lengths < 0.02:
            update = p.grad - p * (p * p.grad).sum() / lengths**2
        p.add_(update, alpha=-group["lr"])


class Listed(Plain):
    """On lists of tensors its step sizes are float32, in a loop they are doubles (LaProp of pytorch-optimizer)."""

    def __init__(self, params: Any, foreach: bool | None = None) -> None:
        super().__init__(params, foreach=foreach)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            if group["foreach"] is False:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"] / 3)
                continue
            listed = [p for p in group["params"] if p.grad is not None]
            sizes = torch.tensor([-group["lr"] / 3 for _ in listed], dtype=torch.float32)
            torch._foreach_addcmul_(listed, [p.grad for p in listed], sizes.unbind())


class ListedMasks(Listed):
    """Its path on lists cannot be compiled, and its loop computes the same."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                change = -group["lr"] * p.grad
                if group["foreach"] is False:
                    p.add_(change)
                else:
                    every = torch.ones_like(p, dtype=torch.bool)
                    p.view(-1).add_(change[every])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def loss(model: Any, batch: Any) -> torch.Tensor:
    return model(batch).square().mean()


def given(count: int = 6) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize(
    "kind",
    [
        Attribute,
        Counts,
        Averages,
        Nothing,
        AsksItself,
        Averaging,
        Measures,
        Divides,
        Table,
        Soft,
        AsksForAGradient,
        Listed,
        partial(Listed, foreach=True),
        partial(Listed, foreach=False),
        ListedMasks,
    ],
    ids=lambda kind: getattr(kind, "__name__", None) or f"{kind.func.__name__}{kind.keywords}",
)
def test_it_trains_as_eager_does(kind: Any) -> None:
    theirs, mine = Net(), Net()
    plain, optimizer = kind(theirs.parameters()), kind(mine.parameters())
    step = bridge.compile(mine, loss, optimizer, example_batch=given()[0], cache=False)
    for i, batch in enumerate(given()):
        if i == 4:  # a schedule goes on working
            for group in (plain.param_groups[0], optimizer.param_groups[0]):
                group["lr"] = 0.2
        plain.zero_grad()
        value = loss(theirs, batch)
        value.backward()
        plain.step()
        assert float(step(batch)) == pytest.approx(float(value), rel=1e-12)
    step.sync_to_torch()
    assert step.certificate is not None and step.certificate.ok, str(step.certificate)
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    numbers = [{k: v for k, v in o.param_groups[0].items() if k != "params"} for o in (plain, optimizer)]
    lists = [{k: found.pop(k) for k in list(found) if isinstance(found[k], list)} for found in numbers]
    assert lists[0] == lists[1]
    assert numbers[0] == pytest.approx(numbers[1])
    state = [[dict(entry) for entry in o.state.values()] for o in (plain, optimizer)]
    assert [list(e) for e in state[0]] == [list(e) for e in state[1]]


def test_a_path_that_is_changed_while_training_is_followed() -> None:
    theirs, mine = Net(), Net()
    plain, optimizer = Listed(theirs.parameters()), Listed(mine.parameters())
    step = bridge.compile(mine, loss, optimizer, example_batch=given()[0], cache=False)
    for i, batch in enumerate(given()):
        if i == 3:
            plain.param_groups[0]["foreach"] = optimizer.param_groups[0]["foreach"] = False
        plain.zero_grad()
        loss(theirs, batch).backward()
        plain.step()
        step(batch)
    step.sync_to_torch()
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)


def test_a_count_in_the_group_makes_two_programs_and_no_more() -> None:
    model = Net()
    optimizer = Counts(model.parameters())
    step = bridge.compile(model, loss, optimizer, example_batch=given()[0], cache=False)
    made = []
    for batch in given():
        step(batch)
        made.append(step.programs[0])
    assert len({id(program) for program in made[1:]}) == 1


class Draws(Plain):
    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.add_(p.grad + 1e-3 * torch.randn_like(p), alpha=-group["lr"])


class AsksForAClosure(Plain):
    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()
        super().step()


class Hessian(Plain):
    """Hutchinson's estimate: random vectors through the graph of the gradients."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        (z,) = [torch.randn_like(q) for q in [p]]
        (h,) = torch.autograd.grad(p.grad, p, z)
        p.add_(p.grad / (h * z).abs(), alpha=-group["lr"])


class Curvature(Plain):
    """The same without random numbers."""

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        (h,) = torch.autograd.grad(p.grad.sum(), p)
        p.add_(p.grad / h.abs(), alpha=-group["lr"])


class OnParameters(Plain):
    """What it keeps hangs on the parameters."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        for p in self.param_groups[0]["params"]:
            p.hess = torch.zeros_like(p)

    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.hess.add_(p.grad.square())
        p.add_(p.grad / p.hess.sqrt(), alpha=-group["lr"])


class Masks(Plain):
    def one(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        mask = p.grad.abs() > p.grad.abs().mean()
        p.grad[mask] = p.grad[mask] / p.grad.abs().max()
        super().one(p, group)


class Wrapper(torch.optim.Optimizer):
    """Its constructor leaves out torch's."""

    def __init__(self, params: Any) -> None:
        self.optimizer = torch.optim.SGD(params, lr=0.1)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self.optimizer.step()


REFUSED = {
    Hessian: "differentiates the gradients",
    Curvature: "differentiates the gradients",
    OnParameters: "keeps .hess on its parameters",
    Masks: "picks elements by a boolean mask",
    Wrapper: "has no param_groups",
    Draws: "draws random numbers",
    AsksForAClosure: "evaluates the loss inside of its step",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_it_is_refused_by_name(kind: Any) -> None:
    model = Net()
    optimizer = kind(model.parameters())
    before = copy.copy(vars(optimizer).get("seen"))
    with pytest.raises(bridge.Refused, match=REFUSED[kind]) as refused:
        bridge.compile(model, loss, optimizer, example_batch=given()[0], cache=False)
    assert {reason.code for reason in refused.value.reasons} == {"optimizer"}
    assert all(r.hint and r.where and r.where.file == __file__ for r in refused.value.reasons)
    assert vars(optimizer).get("seen") == before and not getattr(optimizer, "state", None)
