"""DDPM (Ho et al., 2020): a noise schedule, a network that predicts the noise, a moving average of its weights.

    python examples/ddpm.py

Learns two moons; samples with the averaged weights. The same loop in plain PyTorch, with AveragedModel, runs beside it.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import detente

STEPS, DECAY = 50, 0.95


class Denoiser(nn.Module):
    """Predicts the noise in ``x`` at times ``t``; the schedule is part of the module, as buffers."""

    def __init__(self, width=64):
        super().__init__()
        beta = torch.linspace(1e-3, 0.2, STEPS)
        self.register_buffer("beta", beta)
        self.register_buffer("kept", torch.cumprod(1 - beta, dim=0))
        self.register_buffer("frequencies", torch.exp(torch.linspace(0, math.log(100), 8)) / STEPS)
        self.net = nn.Sequential(
            nn.Linear(2 + 16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )

    def forward(self, x, t):
        angle = t[:, None] * self.frequencies
        return self.net(torch.cat([x, angle.sin(), angle.cos()], dim=1))

    def noised(self, x, t, noise):
        kept = self.kept[t][:, None]
        return kept.sqrt() * x + (1 - kept).sqrt() * noise


def loss(model, batch):
    x, t, noise = batch
    return nn.functional.mse_loss(model(model.noised(x, t, noise), t), noise)


def moons(count, generator):
    angle = math.pi * torch.rand(count, generator=generator)
    upper = (torch.rand(count, generator=generator) < 0.5).float()
    x = angle.cos() * (2 * upper - 1) + (1 - upper)
    y = angle.sin() * (2 * upper - 1) + 0.5 * (1 - upper)
    return torch.stack([x, y], dim=1) - torch.tensor([0.5, 0.25])


def batches(count, generator):
    for _ in range(count):
        x = moons(128, generator)
        yield x, torch.randint(STEPS, (128,), generator=generator), torch.randn(128, 2, generator=generator)


@torch.no_grad()
def sample(model, count, generator):
    """Ancestral sampling, in plain PyTorch."""
    x = torch.randn(count, 2, generator=generator)
    for t in reversed(range(STEPS)):
        beta, kept = model.beta[t], model.kept[t]
        predicted = model(x, torch.full((count,), t))
        x = (x - beta / (1 - kept).sqrt() * predicted) / (1 - beta).sqrt()
        if t:
            x = x + beta.sqrt() * torch.randn(count, 2, generator=generator)
    return x


def distance(points, data):
    """How far a point is from the data, on average."""
    return torch.cdist(points, data).min(dim=1).values.mean().item()


torch.manual_seed(0)
model = Denoiser()
beside, averaged = copy.deepcopy(model), copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

step = detente.compile(
    model, loss, optimizer, example_batch=next(batches(1, torch.Generator())), ema=DECAY, seed=0
)
losses = []
for number, batch in enumerate(batches(600, torch.Generator().manual_seed(1))):
    losses.append(step(batch))
    if number == 19:
        early = step.averages()
    if number % 150 == 0:
        print(f"step {number}: loss {losses[-1]:.4f}")
print(f"mean loss of the last 50: {sum(map(float, losses[-50:])) / 50:.4f}")

data = moons(2000, torch.Generator().manual_seed(2))
before = distance(sample(averaged, 300, torch.Generator().manual_seed(3)), data)
averaged.load_state_dict(step.averages())
after = distance(sample(averaged, 300, torch.Generator().manual_seed(3)), data)
print(f"samples are {before:.3f} from the data before, {after:.3f} after")

plain = torch.optim.Adam(beside.parameters(), lr=3e-3)
average = AveragedModel(beside, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
eager = []
for batch in batches(20, torch.Generator().manual_seed(1)):
    plain.zero_grad()
    value = loss(beside, batch)
    value.backward()
    plain.step()
    average.update_parameters(beside)
    eager.append(value.item())
torch.testing.assert_close([float(value) for value in losses[:20]], eager, rtol=1e-3, atol=1e-4)
torch.testing.assert_close(early, dict(average.module.state_dict()), rtol=1e-3, atol=1e-4)
print("beside eager: losses and averaged weights equal for 20 steps")
