"""A physics-informed net (Raissi et al., 2019): Burgers' equation, its derivatives taken inside of the loss.

    python examples/physics_informed.py

``torch.autograd.grad(..., create_graph=True)`` is part of the program: the compiled step differentiates the derivatives
again. The viscosity is unknown and learned beside the net, from points of a known solution. The same loop in plain
PyTorch runs beside it.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import detente

TRUE, SPEED = 0.5, 1.0


def wave(t, x):
    """A travelling wave that solves u_t + u u_x = nu u_xx."""
    return SPEED - SPEED * torch.tanh(SPEED * (x - SPEED * t) / (2 * TRUE))


class Field(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )
        self.log_viscosity = nn.Parameter(torch.tensor(0.5))

    def forward(self, t, x):
        return self.net(torch.stack([t, x], dim=-1)).squeeze(-1)


def slope(values, of):
    (found,) = torch.autograd.grad(values.sum(), of, create_graph=True)
    return found


def loss(model, batch):
    t, x = batch["t"].requires_grad_(), batch["x"].requires_grad_()
    u = model(t, x)
    u_t, u_x = slope(u, t), slope(u, x)
    residual = u_t + u * u_x - model.log_viscosity.exp() * slope(u_x, x)
    data = model(batch["seen t"], batch["seen x"]) - wave(batch["seen t"], batch["seen x"])
    return residual.square().mean() + 10 * data.square().mean()


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        t, x = torch.rand(2, 128, generator=generator)
        seen_t, seen_x = torch.rand(2, 64, generator=generator)
        yield {"t": t, "x": 4 * x - 2, "seen t": seen_t, "seen x": 4 * seen_x - 2}


torch.manual_seed(0)
model = Field()
beside = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)

step = detente.compile(model, loss, optimizer, example_batch=next(batches(1)))
losses = []
for number, batch in enumerate(batches(1500)):
    losses.append(step(batch))
    schedule.step()
    if number == 9:
        early = copy.deepcopy(model.state_dict())
    if number % 300 == 0:
        print(f"step {number}: loss {losses[-1]:.5f}, viscosity {model.log_viscosity.exp():.3f}")
print(step.certificate)
print(f"found viscosity: {model.log_viscosity.exp():.3f} (true {TRUE})")

t, x = torch.meshgrid(torch.linspace(0, 1, 20), torch.linspace(-2, 2, 40), indexing="ij")
with torch.no_grad():
    print(f"largest error of the field: {(model(t, x) - wave(t, x)).abs().max():.3f}")

plain = torch.optim.Adam(beside.parameters(), lr=5e-3)
lower = torch.optim.lr_scheduler.CosineAnnealingLR(plain, 1500)
eager = []
for batch in batches(10):
    plain.zero_grad()
    value = loss(beside, batch)
    value.backward()
    plain.step()
    lower.step()
    eager.append(value.item())
torch.testing.assert_close([float(value) for value in losses[:10]], eager, rtol=1e-3, atol=1e-4)
torch.testing.assert_close(early, beside.state_dict(), rtol=1e-3, atol=1e-4)
print("beside eager: losses and weights equal for 10 steps")
