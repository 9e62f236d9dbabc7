"""A GAN: two networks, two optimizers, two programs that share their weights.

    python examples/gan.py

The generator learns points on a circle. The same loop in plain PyTorch runs beside it, from the same weights and noise.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

import detente


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(
            nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)
        )


def judge(gan, batch):
    """The discriminator's loss; nothing of it reaches the generator."""
    noise, real = batch
    made = gan.generator(noise).detach()
    return F.softplus(-gan.discriminator(real)).mean() + F.softplus(gan.discriminator(made)).mean()


def fool(gan, batch):
    """The generator's loss. The discriminator is differentiated through and not changed: it is not in the optimizer."""
    noise, _ = batch
    return F.softplus(-gan.discriminator(gan.generator(noise))).mean()


def batches(count, generator):
    for _ in range(count):
        angle = 2 * math.pi * torch.rand(64, generator=generator)
        yield torch.randn(64, 4, generator=generator), torch.stack([angle.cos(), angle.sin()], dim=1)


def optimizers(gan):
    return [
        torch.optim.Adam(part.parameters(), lr=2e-3, betas=(0.5, 0.999))
        for part in (gan.discriminator, gan.generator)
    ]


def radius(gan, noise):
    with torch.no_grad():
        lengths = gan.generator(noise).norm(dim=1)
    return f"{lengths.mean():.2f} +- {lengths.std():.2f}"


def eager(gan, count):
    """As it is written without a compiler."""
    of_d, of_g = optimizers(gan)
    losses = []
    for batch in batches(count, torch.Generator().manual_seed(1)):
        for loss, optimizer in ((judge, of_d), (fool, of_g)):
            optimizer.zero_grad()
            value = loss(gan, batch)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    return losses


torch.manual_seed(0)
gan = GAN()
beside = copy.deepcopy(gan)
noise = torch.randn(256, 4)
print("radius before:", radius(gan, noise))

of_d, of_g = optimizers(gan)
example = next(batches(1, torch.Generator()))
critic = detente.compile(gan, judge, of_d, example_batch=example)
author = detente.compile(gan, fool, of_g, example_batch=example, share=critic)

losses = []
for number, batch in enumerate(batches(400, torch.Generator().manual_seed(1))):
    losses += [critic(batch), author(batch)]
    if number % 100 == 0:
        print(f"step {number}: discriminator {losses[-2]:.4f}, generator {losses[-1]:.4f}")
print("certificates:", critic.certificate.ok, author.certificate.ok)
print("radius after:", radius(gan, noise))  # who reads the module is given the trained weights

first = [float(value) for value in losses[:40]]
torch.testing.assert_close(first, eager(beside, 20), rtol=1e-3, atol=1e-4)
print("beside eager: equal for 20 steps of both")
