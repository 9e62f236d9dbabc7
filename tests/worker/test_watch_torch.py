"""What counts as an update outside of the compiled regions: an optimizer's, wherever it runs, and not autograd's own
sum of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from detente.worker.watch.in_torch import dispatched, watch

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


def drawn(step: Callable[[], Any]) -> int:
    return dispatched(step)["random_ops"]


def of_mine(name: str, body: Callable[[Any], Any]) -> Any:
    """An operator of a user's own, of this name."""
    return torch.library.custom_op(f"watched::{name}", body, mutates_args=())


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn(x.shape)


@pytest.mark.parametrize("name", ["normalize", "operand_scale", "uniformly"])
def test_an_operator_that_is_called_as_if_it_drew_draws_nothing(name: str) -> None:
    operator = of_mine(name, scaled)
    assert drawn(lambda: operator(torch.ones(3))) == 0


def test_one_that_is_called_as_if_it_did_not_does() -> None:
    operator = of_mine("quiet", noisy)
    assert drawn(lambda: operator(torch.ones(3))) > 0


def test_what_torch_draws_is_counted_and_a_rate_of_nothing_is_none() -> None:
    x, heads = torch.ones(8), torch.ones(1, 1, 4, 8)
    functional = torch.nn.functional

    def attend(rate: float) -> int:
        return drawn(lambda: functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=rate))

    assert drawn(lambda: functional.dropout(x, 0.5)) > 0 and drawn(lambda: x.bernoulli_(0.5)) > 0
    assert drawn(lambda: functional.dropout(x, 0.5, training=False)) == 0
    assert attend(0.0) == 0 and attend(0.5) > 0
    own = torch.Generator().manual_seed(1)
    assert drawn(lambda: torch.rand(3, generator=own)) > 0
    lstm = torch.nn.LSTM(4, 4, num_layers=2)
    assert drawn(lambda: lstm(torch.ones(2, 1, 4))) == 0
