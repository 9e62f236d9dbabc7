"""Tensors of the module that get other memory, another size or another object, or whose class nobody knows; and a batch
that shows them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from tests.bridge.between.loops import World, batches, cross_entropy, equal, run, stepping


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.b(torch.tanh(self.a(x)))))


def test_two_parameters_that_are_given_one_memory_are_refused() -> None:
    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 3:
                world.model.b.weight.data = world.model.a.weight.data

        return stepping(world, change)

    with pytest.raises(bridge.Refused, match="two parameters of one memory"):
        run(loop, bridge=True, build=Twice)


def test_one_flat_tensor_under_all_weights_that_the_loop_writes() -> None:
    def loop(world: World) -> list[float]:
        held: list[torch.Tensor] = []

        def change(i: int) -> float | None:
            if i == 2:
                parameters = list(world.model.parameters())
                held.append(torch.cat([p.detach().reshape(-1) for p in parameters]))
                pieces = held[0].split([p.numel() for p in parameters])
                for p, piece in zip(parameters, pieces, strict=True):
                    p.data = piece.view_as(p)
            if i < 3:
                return None
            norm = float(held[0].norm())
            held[0].mul_(0.9)
            return norm

        return stepping(world, change)

    with pytest.warns(UserWarning, match="parts of one, which somebody else holds"):
        equal(loop, build=Twice, optimizer=sgd)


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(10, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.embed((x[:, 0].abs() * 3).long().clamp(max=self.embed.num_embeddings - 1)))


def test_a_larger_vocabulary_through_data_is_another_program() -> None:
    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 3:
                embed = world.model.embed
                embed.weight.data = torch.cat([embed.weight.data, torch.ones(2, 6)])
                embed.num_embeddings = 12

        return stepping(world, change)

    equal(loop, build=Embeds, optimizer=sgd)


def test_a_model_that_becomes_one_of_doubles() -> None:
    class Cast(Embeds):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).float()

    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 3:
                world.model.double()

        return stepping(world, change)

    equal(loop, build=Cast, optimizer=sgd)


class Scale(nn.Parameter):
    """A class of the user's own."""


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.scale = nn.Linear(6, 3), Scale(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) * self.scale


def test_a_parameter_of_a_class_that_cannot_be_watched_is_written_back_after_every_step() -> None:
    def loop(world: World) -> list[float]:
        def change(i: int) -> float:
            if i == 4:
                world.model.scale.data.fill_(2.0)
            return float(world.model.scale.detach())

        return stepping(world, change)

    with pytest.warns(UserWarning, match="class Scale of one of its tensors cannot be watched"):
        equal(loop, build=Scaled, optimizer=sgd)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def test_a_parameter_whose_object_is_swapped() -> None:
    def loop(world: World) -> list[float]:
        def change(i: int) -> float:
            if i == 3:
                other = nn.Parameter(torch.linspace(-0.5, 0.5, 48).view(8, 6))
                torch.utils.swap_tensors(world.model[0].weight, other)
            world.model[0].weight.data.clamp_(-0.3, 0.3)
            return float(world.model[0].weight.detach().norm())

        return stepping(world, change)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equal(loop, build=plain, optimizer=sgd)


def test_a_second_object_of_a_weight_is_that_weight() -> None:
    class Shown(Twice):
        def __init__(self) -> None:
            super().__init__()
            self.shown = nn.Parameter(self.a.weight.data, requires_grad=False)

    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            if i > 2:
                world.model.shown.data.mul_(0.9)

        return stepping(world, change)

    equal(loop, build=Shown, optimizer=lambda p: sgd([q for q in p if q.requires_grad]))


class Bank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.last(x)
        if self.training:
            with torch.no_grad():
                self.centre.lerp_(out.mean(0), 0.5)
        return out


def towards(model: nn.Module, batch: Any) -> torch.Tensor:
    wanted = batch["centre"] + 1.0
    return cross_entropy(model, batch) + (model(batch["x"]) - wanted).square().mean()


def test_a_batch_that_holds_a_buffer_of_the_module() -> None:
    def loop(world: World) -> list[float]:
        return [world.step(batch | {"centre": world.model.centre}) for batch in batches()]

    example = batches()[0] | {"centre": torch.zeros(3)}
    equal(loop, build=Bank, loss=lambda world: towards, optimizer=sgd, example=example)


def test_a_batch_that_holds_an_alias_of_a_weight() -> None:
    def against(model: nn.Module, batch: Any) -> torch.Tensor:
        return (
            cross_entropy(model, batch)
            + (batch["x"] @ batch["w"].t()).square().mean() * model.last.bias.sum()
        )

    def loop(world: World) -> list[float]:
        shown = world.model.last.weight.detach()
        return [world.step(batch | {"w": shown}) for batch in batches()]

    example = batches()[0] | {"w": torch.zeros(3, 6)}
    equal(loop, build=Bank, loss=lambda world: against, optimizer=sgd, example=example)
