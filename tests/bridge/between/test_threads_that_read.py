"""A thread that logs, or saves, reads the module while the loop trains it: the training is what it is without one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.bridge.between.loops import World, batches, equal


@pytest.fixture(autouse=True)
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def norms(world: World) -> None:
    for parameter in world.model.parameters():
        float(parameter.detach().norm())


def states(world: World) -> None:
    world.model.state_dict()
    world.optimizer.state_dict()


@pytest.mark.parametrize("read", [norms, states], ids=lambda read: read.__name__)
def test_the_training_is_the_same(read: Callable[[World], Any]) -> None:
    def loop(world: World) -> list[float]:
        over, errors = threading.Event(), []

        def reads() -> None:
            try:
                while not over.is_set():
                    read(world)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=reads)
        thread.start()
        try:
            losses = [world.step(batch) for batch in batches() * 8]
        finally:
            over.set()
            thread.join()
        assert not errors, errors
        return losses

    with torch.random.fork_rng():
        equal(loop, certificate="none")
