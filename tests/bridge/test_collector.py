"""Python's collector is asked less often while a step is made, and as before behind it, however that ended."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge.step.variants import Variants
from detente.collector import asked_seldom

PYTHONS = gc.get_threshold()


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*PYTHONS)


class Model(nn.Module):
    """Refuses five rows, as eager does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 5:
            raise ValueError("five")
        return self.inner(x).square().mean()


def test_it_is_asked_seldom_in_a_capture_and_as_before_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []
    plain = Variants._stored

    def stored(self: Variants, *given: Any) -> Any:
        seen.append(gc.get_threshold())
        return plain(self, *given)

    monkeypatch.setattr(Variants, "_stored", stored)
    model = Model()
    step = detente.compile(
        model,
        lambda m, b: m(b),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=torch.ones(4, 3),
        certificate="none",
        quiet=True,
    )
    assert seen == [(20_000, 20, 10)] and gc.get_threshold() == (700, 10, 10) and gc.isenabled()
    with pytest.raises(ValueError, match="five"):
        step(torch.ones(5, 3))
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("users", [(0, 10, 10), (50_000, 5, 5)])
def test_a_collector_that_is_asked_more_rarely_stays(users: tuple[int, int, int]) -> None:
    gc.set_threshold(*users)
    with asked_seldom():
        assert gc.get_threshold() == users
    assert gc.get_threshold() == users


def test_what_is_set_meanwhile_stays() -> None:
    with asked_seldom():
        gc.set_threshold(1234, 5, 6)
    assert gc.get_threshold() == (1234, 5, 6)


def test_the_last_of_two_threads_restores_what_the_first_found() -> None:
    inside, leave = threading.Event(), threading.Event()

    def captures() -> None:
        with asked_seldom():
            inside.set()
            leave.wait(10)

    other = threading.Thread(target=captures)
    other.start()
    assert inside.wait(10)
    with asked_seldom():
        pass
    assert gc.get_threshold() != (700, 10, 10)
    leave.set()
    other.join(10)
    assert gc.get_threshold() == (700, 10, 10)
