"""``.data`` in forward, frozen parameters that forward writes, flags that are settled already: as in eager torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente import bridge
from detente.bridge.refusal import Refused

BATCHES = list(torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0)))


class Net(nn.Module):
    """``does`` is the forward; a teacher that is frozen, a frozen parameter and a buffer are there to be written."""

    def __init__(self, does: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.teacher = nn.Linear(6, 4), nn.Linear(6, 4)
        self.teacher.requires_grad_(False)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("mean", torch.ones(4))
        self.does = does

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.does(self, x)


def teaches(
    update: Callable[[torch.Tensor, torch.Tensor], Any],
) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for theirs, own in zip(m.teacher.parameters(), m.a.parameters(), strict=True):
                update(theirs, own)
        return F.mse_loss(m.a(x), m.teacher(x) + 1)

    return forward


def set_data(tensor: torch.Tensor, value: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    tensor.data = value(tensor.data)
    return tensor


def then(*done: Any) -> Any:
    """The last of what was done."""
    return done[-1]


def of(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.a(x).square().mean()


def halves(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x)
    return (y * y.data).mean() + (y / y.data.norm()).mean()


def through_an_old_alias(m: Any, x: torch.Tensor) -> torch.Tensor:
    alias = m.frozen.data
    m.frozen.mul_(0.5)
    return (m.a(x) * alias).square().mean()


def moved_without_no_grad(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.mean.data.mul_(0.9).add_(m.a(x).mean(0))
    m.frozen.data.add_(m.a(x).mean(0))
    return (m.a(x) * m.mean * m.frozen).square().mean()


EQUAL: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "teacher, .data.mul_().add_()": teaches(lambda t, s: t.data.mul_(0.9).add_(s.data, alpha=0.1)),
    "teacher, mul_().add_()": teaches(lambda t, s: t.mul_(0.9).add_(s, alpha=0.1)),
    "teacher, .data = ": teaches(lambda t, s: set_data(t, lambda data: 0.9 * data + 0.1 * s.data)),
    "teacher, copy_": teaches(lambda t, s: t.copy_(0.9 * t + 0.1 * s)),
    "teacher, lerp_": teaches(lambda t, s: t.lerp_(s, 0.1)),
    "teacher, one row": teaches(lambda t, s: t[0].copy_(s[0])),
    "teacher, load_state_dict": lambda m, x: then(
        m.teacher.load_state_dict(m.a.state_dict()), F.mse_loss(m.a(x), m.teacher(x) + 1)
    ),
    "a frozen parameter that counts": lambda m, x: then(
        m.frozen.add_(1), (m.a(x) * m.frozen).square().mean()
    ),
    "a frozen parameter and its alias": through_an_old_alias,
    ".data takes the value and no gradient": moved_without_no_grad,
    ".data = of what carries a gradient": lambda m, x: then(
        set_data(m.mean, lambda data: 0.9 * data + m.a(x).mean(0)), (m.a(x) * m.mean).square().mean()
    ),
    "y.data": halves,
    "weight.data": lambda m, x: (F.linear(x, m.a.weight.data) * m.a(x)).mean(),
    "weight.data.item()": lambda m, x: of(m, x) * m.a.weight.data[0, 0].item(),
    "weight.data = weight.data.to(same)": lambda m, x: then(
        set_data(m.a.weight, lambda data: data.to(torch.float32)), of(m, x)
    ),
    "torch.tensor of a loss": lambda m, x: of(m, x) * torch.tensor(of(m, x)),
    "requires_grad that is so": lambda m, x: then(
        m.a.weight.requires_grad_(True), m.a.requires_grad_(), m.teacher.requires_grad_(False), of(m, x)
    ),
    "moves that move nothing": lambda m, x: then(m.a.to("cpu"), m.float(), of(m, x.to(x.device).to_dense())),
    "modes that are so": lambda m, x: then(m.train(), torch.set_grad_enabled(True), of(m, x.contiguous())),
}


def trained(model: Any, step: Callable[[torch.Tensor], Any]) -> list[float]:
    return [float(step(batch.clone())) for batch in BATCHES]


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad", "ignore:To copy construct")
@pytest.mark.parametrize("name", EQUAL)
def test_trains_as_eager_does(name: str) -> None:
    model = Net(EQUAL[name])
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.SGD(theirs.a.parameters(), lr=0.05)

    def eager(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        value = theirs(batch)
        value.backward()
        optimizer.step()
        return value.detach()

    step = bridge.compile(
        model,
        lambda m, b: m(b),
        torch.optim.SGD(model.a.parameters(), lr=0.05),
        example_batch=BATCHES[0],
        cache=False,
    )
    ours = trained(model, step)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(trained(theirs, eager)), rtol=1e-5, atol=1e-6)
    step.sync_to_torch()
    torch.testing.assert_close(model.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-6)


def frees(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x)
    y.detach_()
    return (m.a(x) * y).mean()


def doubles(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x)
    y.data.mul_(2)
    return y.square().mean()


def reads_the_alias(m: Any, x: torch.Tensor) -> torch.Tensor:
    alias = m.mean.data
    alias.add_(m.a(x).mean(0))
    return (m.a(x) * alias).mean()


# what forward does -> code, and words that the reason has
REFUSED: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], str, str]] = {
    "trained parameter, .data.clamp_()": (
        lambda m, x: then(m.a.weight.data.clamp_(-0.1, 0.1), of(m, x)),
        "parameter",
        "writes parameter a.weight",
    ),
    "trained parameter, .data =": (
        lambda m, x: then(set_data(m.a.weight, lambda data: data / data.norm()), of(m, x)),
        "parameter",
        "writes parameter a.weight",
    ),
    "a gradient into a frozen parameter": (
        lambda m, x: then(m.frozen.add_(m.a(x).mean(0)), (m.a(x) * m.frozen).mean()),
        "parameter",
        "frozen parameter frozen what carries a gradient",
    ),
    "y.data written": (
        doubles,
        "no-grad-inplace",
        "hidden from autograd",
    ),
    "an alias that is read again": (reads_the_alias, "no-grad-inplace", "detached tensor that is read again"),
    "detach_": (frees, "no-grad-inplace", "detach_() of a tensor that carries a gradient"),
    "the batch, through .data": (
        lambda m, x: then(x.data.mul_(2), of(m, x)),
        "batch",
        "writes the batch in place",
    ),
    "another dtype": (lambda m, x: then(m.teacher.double(), of(m, x)), "parameter", "changes the dtype"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_graph_cannot_say_is_refused_by_line(name: str) -> None:
    does, code, words = REFUSED[name]
    model = Net(does)
    with pytest.raises(Refused) as refused:
        bridge.compile(
            model,
            lambda m, b: m(b),
            torch.optim.SGD(model.a.parameters(), lr=0.05),
            example_batch=BATCHES[0],
            cache=False,
        )
    reason = refused.value.reasons[0]
    assert reason.code == code and words in reason.what
    assert reason.where is not None and reason.where.file == __file__


def test_torch_is_left_as_it_was() -> None:
    before = {n: vars(torch.Tensor).get(n) for n in ("data",)}
    apply = nn.Module._apply
    for does in (EQUAL["y.data"], REFUSED["detach_"][0]):
        model = Net(does)
        bridge.check(model, lambda m, b: m(b), BATCHES[0])
    assert before == {n: vars(torch.Tensor).get(n) for n in before} and nn.Module._apply is apply
