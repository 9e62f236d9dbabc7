"""Which seed, which draw: torch.manual_seed before compile, draws that nothing reads, draws in a branch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.certify.eager import eager_step
from detente.bridge.random import twin

X = torch.ones(8, 16)


class Drops(nn.Module):
    """Dropout, after a draw that may be read or not."""

    def __init__(self, used=False):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.used = nn.Linear(16, 16), used

    def forward(self, x):
        first = torch.rand(8, 16)
        torch.randn(3)  # read by nobody, in both
        y = nn.functional.dropout(self.linear(x), 0.5)
        return (y + 1e-9 * first).pow(2).sum() if self.used else y.pow(2).sum()


def loss(model, batch):
    return model(batch)


def losses(model, torchs=None, steps=2, **options):
    if torchs is not None:
        torch.manual_seed(torchs)
    step = bridge.compile(
        model,
        loss,
        torch.optim.SGD(model.parameters(), lr=0.0),
        example_batch=X,
        certificate="none",
        **options,
    )
    return [float(step(X)) for _ in range(steps)]


def test_manual_seed_before_compile_decides():
    made = {seed: losses(Drops(), seed) for seed in (1, 2)}
    assert made[1] == losses(Drops(), 1), "the same seed repeats"
    assert not set(made[1]) & set(made[2]), "another seed differs, in every step"
    assert len(set(made[1])) == 2, "every step draws anew"
    assert losses(Drops(), 2, seed=1) == made[1], "seed= comes before torch's"


def test_manual_seed_after_compile_does_nothing():
    """The random numbers are those of (seed, step); torch's generator is not read while steps run."""
    model = Drops()
    torch.manual_seed(3)
    step = bridge.compile(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.0), example_batch=X, certificate="none"
    )
    state = torch.get_rng_state()
    found = [float(step(X))]
    assert torch.equal(torch.get_rng_state(), state), "the caller's generator stays where it is"
    torch.manual_seed(99)
    found.append(float(step(X)))
    assert found == losses(Drops(), 3)


@pytest.mark.parametrize("used", [False, True])
def test_a_dead_draw_keeps_its_number(used):
    """The mask is the same whether the draw before it is read or not, and it is eager's."""
    found = losses(Drops(used), seed=7)
    assert found == pytest.approx(losses(Drops(not used), seed=7), rel=1e-6)
    other = Drops(used)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.0)
    eager = [float(eager_step(other, loss, optimizer, X, twin(7, count)).loss) for count in range(2)]
    assert found == pytest.approx(eager, rel=1e-6)


DRAWN = {
    "exponential": lambda y: y * torch.empty_like(y).exponential_(),
    "normal": lambda y: y * torch.normal(y.detach(), 2.0) * torch.randn_like(y),
    "log_normal": lambda y: y * torch.empty_like(y).log_normal_(),
    "cauchy": lambda y: y * torch.empty_like(y).cauchy_(),
    "uniform": lambda y: y * torch.empty_like(y).uniform_(-0.3, 0.7),
    "rrelu": lambda y: nn.functional.rrelu(y, training=True),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_float64_model_draws_to_float64s_rounding(name):
    """The logarithms and error functions of two stacks differ by a rounding of float32, a million of float64."""
    torch.manual_seed(0)
    model = nn.Linear(16, 16).double()
    step = bridge.compile(
        model,
        lambda m, x: DRAWN[name](m(x)).pow(2).mean(),
        torch.optim.SGD(model.parameters(), lr=0.01),
        example_batch=X.double(),
        seed=0,
        cache=False,
    )
    for _ in range(2):
        step(X.double())
    assert step.certificate is not None and step.certificate.ok
