"""Nobody holds the step any more, and the model goes on: what was trained stays in it, as eager leaves it there."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import detente
from tests.bridge.between.loops import Net, batches, cross_entropy, eager


def trained(
    on_bridge: bool, model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 6, **how: Any
) -> None:
    """A function that compiles, trains and lets its step go."""
    if on_bridge:
        step: Any = detente.compile(
            model,
            cross_entropy,
            optimizer,
            example_batch=batches()[0],
            seed=3,
            cache=False,
            quiet=True,
            **how,
        )
    else:
        step = eager(model, cross_entropy, optimizer)
    for batch in batches(count):
        step(batch)


def both(loop: Any) -> None:
    found = []
    for on_bridge in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loop(on_bridge, model, optimizer)
        gc.collect()
        found.append((model.state_dict(), optimizer.state_dict()["state"]))
    (wanted, moments), (mine, kept) = found
    torch.testing.assert_close(mine, wanted, rtol=2e-4, atol=5e-5)
    torch.testing.assert_close(kept, moments, rtol=2e-4, atol=5e-5)


def test_the_model_has_what_was_trained() -> None:
    both(trained)


@pytest.mark.parametrize("count", [1, 2])
def test_behind_a_first_step_whose_certificate_waits(count: int) -> None:
    both(lambda *given: trained(*given, count=count))


def test_a_second_stage_goes_on_from_the_first() -> None:
    def loop(on_bridge: bool, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        trained(on_bridge, model, optimizer)
        gc.collect()
        trained(on_bridge, model, optimizer)

    both(loop)


def test_a_rolled_form_is_written_back_by_torchs_names() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(12))
            self.last = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return self.last(x)

    found = []
    for on_bridge in (False, True):
        torch.manual_seed(0)
        model = Deep()
        how = {"form": "rolled"} if on_bridge else {}
        trained(on_bridge, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **how)
        gc.collect()
        found.append(model.state_dict())
    torch.testing.assert_close(found[1], found[0], rtol=2e-4, atol=5e-5)


def test_what_was_written_since_is_not_overwritten() -> None:
    model = Net()
    trained(True, model, torch.optim.SGD(model.parameters(), lr=0.1))
    with torch.no_grad():
        model.last.weight.fill_(3.0)
    gc.collect()
    assert model.last.weight.eq(3.0).all()


class Collects(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        return x + 1


def test_a_step_goes_while_somebody_traces() -> None:
    """The collector runs anywhere: what it writes back is no part of a trace of torch's or JAX's."""
    import jax

    models = [Net(), Net()]
    for model in models:
        trained(True, model, torch.optim.SGD(model.parameters(), lr=0.1))
    held = [m.last.weight.detach().clone() for m in models]

    def traced(x: Any) -> Any:
        gc.collect()
        return x + 1

    assert float(jax.jit(traced)(1.0)) == 2.0
    trained(True, models[1], torch.optim.Adam(models[1].parameters(), lr=0.1))
    torch.export.export(Collects(), (torch.ones(2),), strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(True, models[0], torch.optim.SGD(models[0].parameters(), lr=0.1))
        torch.func.vmap(traced)(torch.ones(3))
    assert not torch.equal(models[0].last.weight, held[0]) and not torch.equal(models[1].last.weight, held[1])


def test_of_two_steps_the_one_that_ran_last_is_written() -> None:
    model = nn.Linear(6, 3)
    batch = batches()[0]
    steps = [
        detente.compile(
            model,
            cross_entropy_of,
            torch.optim.SGD(model.parameters(), lr=rate),
            example_batch=batch,
            cache=False,
            quiet=True,
        )
        for rate in (0.1, 0.2)
    ]
    float(steps[0](batch))
    float(steps[1](batch))
    wanted = {name: torch.from_numpy(value.copy()) for name, value in steps[1].on_host()[0].items()}
    del steps
    gc.collect()
    torch.testing.assert_close(dict(model.state_dict()), wanted)


def cross_entropy_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def test_a_step_is_collected_by_a_thread_that_the_step_inside_waits_for() -> None:
    """It writes back when that one comes out; who waited here would wait for ever."""
    model, other = Net(), Net()
    trained(True, model, torch.optim.SGD(model.parameters(), lr=0.1))
    step = detente.compile(
        other,
        cross_entropy,
        torch.optim.SGD(other.parameters(), lr=0.1),
        example_batch=batches()[0],
        cache=False,
        quiet=True,
    )
    before = model.last.weight.detach().numpy().copy()
    gc.disable()
    try:
        trained(True, model, torch.optim.SGD(model.parameters(), lr=0.1))
        with step._away():
            thread = threading.Thread(target=gc.collect)
            thread.start()
            thread.join(timeout=60)
            assert not thread.is_alive()
    finally:
        gc.enable()
    assert not np.array_equal(model.last.weight.detach().numpy(), before)
