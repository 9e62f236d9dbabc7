"""Arrays of numpy's that show a tensor's memory, written between two steps: no version counter moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.live import unheard
from tests.bridge.between.loops import eager

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Array = Any


def a_tensor_of_an_array() -> tuple[torch.Tensor, Array]:
    array = np.ones(4, np.float32)
    return torch.from_numpy(array), array


def an_array_of_a_tensor() -> tuple[torch.Tensor, Array]:
    tensor = torch.ones(4)
    return tensor, tensor.numpy()


def a_turned_array() -> tuple[torch.Tensor, Array]:
    array = np.ones((4, 3), np.float32)
    return torch.from_numpy(array).t(), array


def a_part_of_one() -> tuple[torch.Tensor, Array]:
    array = np.ones(12, np.float32)
    return torch.from_numpy(array)[4:8], array


def one_number() -> tuple[torch.Tensor, Array]:
    array = np.ones((), np.float32)
    return torch.from_numpy(array), array


def a_buffer_of_python() -> tuple[torch.Tensor, Array]:
    memory = bytearray(np.ones(4, np.float32).tobytes())
    return torch.frombuffer(memory, dtype=torch.float32), np.frombuffer(memory, np.float32)


def doubles() -> tuple[torch.Tensor, Array]:
    array = np.ones(4)
    return torch.from_numpy(array), array


WAYS = [
    a_tensor_of_an_array, an_array_of_a_tensor, a_turned_array, a_part_of_one, one_number, a_buffer_of_python, doubles
]  # fmt: skip


def run(make: Callable[[], tuple[torch.Tensor, Array]], bridged: bool, place: str = "closure") -> Any:
    torch.manual_seed(0)
    held, array = make()
    model: Any = nn.Linear(4, 4)
    if place == "attribute":
        model.target = held
    if place == "buffer":
        model.register_buffer("target", held)
    own = {"target": held}

    def loss(m: Any, x: torch.Tensor) -> torch.Tensor:
        target = own["target"] if place == "closure" else m.target
        return (m(x).float() - target.float()).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = eager(model, loss, optimizer)
    if bridged:
        step = bridge.compile(model, loss, optimizer, example_batch=X, seed=0, quiet=True)
    losses = []
    for at in range(7):
        losses.append(float(step(X)))
        if at >= 2:
            array[...] += 1
    return losses, model.weight.detach().clone()


@pytest.mark.parametrize("place", ["closure", "attribute"])
@pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)
def test_the_next_step_has_what_was_written(make: Any, place: str) -> None:
    theirs, weight = run(make, False, place)
    mine, trained = run(make, True, place)
    assert mine == pytest.approx(theirs, rel=1e-5)
    torch.testing.assert_close(trained, weight)


def test_a_buffer_that_is_behind_the_step_is_refused_and_not_lost() -> None:
    with pytest.raises(bridge.Refused, match=r"target was written after compile[\s\S]*sync_to_torch"):
        run(a_tensor_of_an_array, True, "buffer")


def test_nothing_is_a_write_where_the_values_are_the_same() -> None:
    array = np.array([np.nan, 0.0], np.float32)
    known = unheard.Unheard(["held"], [torch.from_numpy(array)])
    assert known and not known.moved()
    array[0] = np.nan
    assert not known.moved()
    array[1] = -0.0
    assert known.moved() == {"held"}


def test_the_smallest_are_compared_and_not_more_than_a_step_can_wait_for() -> None:
    small, large = np.ones(4, np.float32), np.ones(unheard.LARGEST, np.float32)
    own = torch.ones(4)
    known = unheard.Unheard(
        ["large", "own", "small"], [torch.from_numpy(large), own, torch.from_numpy(small)]
    )
    own += 1
    large += 1
    assert not known.moved()
    small += 1
    assert known.moved() == {"small"}


def test_what_is_torchs_own_costs_nothing() -> None:
    assert not unheard.Unheard(["own", "none"], [torch.ones(4), torch.ones(0)])
