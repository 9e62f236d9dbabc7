"""What a step does to torch's generator: seeded inside of it, eager repeats numbers, the program would not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detente import bridge

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
OWN = torch.Generator()


def seeded(y):
    torch.manual_seed(3)
    return y * torch.randn(y.shape)


def seeded_in_a_fork(y):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return y * torch.randn(y.shape)


def drawn_in_a_fork(y):
    """What is drawn behind the fork would be the same numbers once more."""
    with torch.random.fork_rng(devices=[]):
        y = y * torch.randn(y.shape)
    return y * torch.randn(y.shape)


def put_back(y):
    state = torch.get_rng_state()
    first = torch.rand(y.shape)
    torch.set_rng_state(state)
    return y * first * torch.rand(y.shape)


def of_its_own(y):
    return y * torch.randn(y.shape, generator=OWN)


@pytest.mark.parametrize("draw", [seeded, seeded_in_a_fork, drawn_in_a_fork, put_back, of_its_own])
def test_numbers_that_torch_would_draw_again_are_refused_with_their_line(draw):
    model, before = nn.Linear(5, 3), torch.get_rng_state()
    found = bridge.check(model, lambda m, b: draw(m(b)).sum(), X)
    assert [reason.code for reason in found] == ["generator"]
    assert found[0].where is not None and found[0].where.file == __file__
    assert torch.equal(torch.get_rng_state(), before)


def test_a_fork_that_draws_nothing_is_none():
    def quiet(model, batch):
        with torch.random.fork_rng(devices=[]):
            y = model(batch)
        return (y * torch.rand(y.shape)).sum()

    assert not bridge.check(nn.Linear(5, 3), quiet, X)
