"""A parameter that was the module's stays in the optimizer, as in any fine-tuning: eager's step passes over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from tests.bridge.between.loops import eager

X = [torch.randn(4, 6, generator=torch.Generator().manual_seed(k)) for k in range(8)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.other, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.other(torch.tanh(self.body(x)))))


def a_new_head(m: Net, o: Any) -> None:
    torch.manual_seed(3)
    m.last = nn.Linear(6, 5)
    o.add_param_group({"params": m.last.parameters()})


def a_new_head_for_a_while(m: Net, o: Any) -> Callable[[], None]:
    old = m.last
    a_new_head_that_is_not_trained(m, o)
    return lambda: setattr(m, "last", old)


def a_new_head_that_is_not_trained(m: Net, o: Any) -> None:
    torch.manual_seed(3)
    m.last = nn.Linear(6, 5)


def tied(m: Net, o: Any) -> None:
    m.other.weight = m.body.weight


def normed(m: Net, o: Any) -> None:
    nn.utils.parametrizations.weight_norm(m.other)
    o.add_param_group({"params": [p for n, p in m.other.named_parameters() if "original" in n]})


def somebody_elses(m: Net, o: Any) -> None:
    o.add_param_group({"params": [nn.Parameter(torch.ones(3))]})


def replaced_twice(m: Net, o: Any) -> None:
    a_new_head(m, o)
    a_new_head(m, o)


EDITS = [
    a_new_head,
    a_new_head_that_is_not_trained,
    a_new_head_for_a_while,
    tied,
    normed,
    somebody_elses,
    replaced_twice,
]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
}


def trained(edit: Any, make: Any, bridged: bool) -> Any:
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model.parameters())

    def loss(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m(x).square().mean()

    losses = []
    step = eager(model, loss, optimizer)
    if bridged:
        step = bridge.compile(model, loss, optimizer, example_batch=X[0], seed=0, quiet=True)
    for at, x in enumerate(X):
        if at == 3:
            undo = edit(model, optimizer)
        if at == 5 and undo is not None:
            undo()
        if at == 6:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        losses.append(float(step(x)))
    return losses, dict(model.state_dict()), optimizer.state_dict()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_it_trains_on_as_eager_does(edit: Any, name: str) -> None:
    losses, weights, state = trained(edit, OPTIMIZERS[name], False)
    mine, own, kept = trained(edit, OPTIMIZERS[name], True)
    assert mine == pytest.approx(losses, rel=1e-4)
    torch.testing.assert_close(own, weights, rtol=1e-3, atol=1e-5)
    assert kept["param_groups"] == state["param_groups"]
    assert kept["state"].keys() == state["state"].keys()
    for place, entry in state["state"].items():
        torch.testing.assert_close(kept["state"][place], entry, rtol=1e-3, atol=1e-5)


def test_at_compile_it_is_refused() -> None:
    model = Net()
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3))], lr=0.1)
    with pytest.raises(bridge.Refused, match="holds 1 parameters that are not the module's"):
        bridge.compile(model, lambda m, x: m(x).mean(), optimizer, example_batch=X[0])


def test_what_has_a_gradient_is_refused() -> None:
    """Eager's optimizer would move it in this step."""

    def adds(m: Net, o: Any) -> None:
        one = nn.Parameter(torch.ones(3))
        one.grad = torch.ones(3)
        o.add_param_group({"params": [one]})

    with pytest.raises(bridge.Refused, match="holds 1 parameters that are not the module's"):
        trained(adds, OPTIMIZERS["adamw"], True)


def test_what_the_loss_holds_is_refused() -> None:
    """Eager trains it on: it has a gradient."""
    torch.manual_seed(0)
    model = Net()
    old = model.last
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m(x).square().mean() + old(x).mean()

    step: Any = bridge.compile(model, loss, optimizer, example_batch=X[0], seed=0, quiet=True)
    step(X[0])
    step(X[1])
    model.last = nn.Linear(6, 3)
    with pytest.raises(bridge.Refused, match="that are not the module's"):
        step(X[2])
