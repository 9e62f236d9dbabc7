"""What counts as an update outside of the compiled regions: an optimizer's, wherever it runs, and not autograd's own
sum of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from detente.worker.watch.in_torch import watch

torch = pytest.importorskip("torch", reason="torch is not installed")

ELEMENTS = 3 * 4 + 3


def watched(step: Callable[[Any, Any], None]) -> dict[str, Any]:
    """The third of three steps of a compiled loss, behind ``step(model, loss)``."""
    torch._dynamo.reset()
    model = torch.nn.Linear(4, 3)
    x = torch.ones(2, 4)
    loss = torch.compile(lambda: model(x).square().sum(), backend="aot_eager")
    for _ in range(2):
        step(model, loss)
    return watch(lambda: step(model, loss))


def keeps_gradients(model: Any, loss: Any) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()
    loss().backward()


def zeroes_them_at_once(model: Any, loss: Any) -> None:
    torch.optim.SGD(model.parameters(), foreach=True).zero_grad(set_to_none=False)
    loss().backward()


def gathers_two_batches(model: Any, loss: Any) -> None:
    model.zero_grad(set_to_none=True)
    loss().backward()
    loss().backward()


@pytest.mark.parametrize("step", [keeps_gradients, zeroes_them_at_once, gathers_two_batches])
def test_a_sum_of_gradients_is_no_update(step: Any) -> None:
    found = watched(step)
    assert found["regions"] >= 1 and found["updated"] == 0 and found["eager_ops"] == {}


def updates(model: Any, loss: Any) -> None:
    keeps_gradients(model, loss)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def updates_by_hand(model: Any, loss: Any) -> None:
    keeps_gradients(model, loss)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad)


def hooked(model: Any, loss: Any, before: Callable[[Any, Any], None], factor: float) -> None:
    def update(p: Any) -> None:
        p.data.add_(p.grad, alpha=factor)

    hooks = [p.register_post_accumulate_grad_hook(update) for p in model.parameters()]
    before(model, loss)
    for hook in hooks:
        hook.remove()


def updates_in_a_hook(model: Any, loss: Any) -> None:
    """Right below the record of autograd's sum, and no sum of gradients."""

    def alone(model: Any, loss: Any) -> None:
        model.zero_grad(set_to_none=True)
        loss().backward()

    hooked(model, loss, alone, -0.1)


def updates_in_a_hook_behind_a_sum(model: Any, loss: Any) -> None:
    hooked(model, loss, keeps_gradients, 1)


@pytest.mark.parametrize(
    "step", [updates, updates_by_hand, updates_in_a_hook, updates_in_a_hook_behind_a_sum]
)
def test_an_update_is_one_wherever_it_runs(step: Any) -> None:
    found = watched(step)
    assert found["updated"] >= ELEMENTS and found["eager_ops"]
