"""What a loop may change between two steps, by name: small functions of the world and of a number from 0 to 1.

Each does in eager PyTorch what it does through the bridge; none knows which of the two runs. A value that a change sets
is one of a few, so that a plan of many changes compiles few programs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.bridge.between.loops import Net, World, cross_entropy

Change = Callable[[World, float], Any]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    CHANGES[function.__name__] = function
    return function


class Fuzzed(Net):
    """A model with everything that a change below moves."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.temperature = torch.tensor(1.0)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x) / self.temperature * self.scale
        if self.training:  # a teacher that the loss holds must not be written
            with torch.no_grad():
                self.centre.lerp_(out.mean(0), 0.1)
        return out - 0.1 * self.centre


def criterion(world: World) -> Any:
    """A loss with a teacher, a criterion and a dictionary of weights."""
    teacher = copy.deepcopy(world.model).requires_grad_(False).eval()
    held = world.more
    held |= {
        "teacher": teacher,
        "criterion": nn.CrossEntropyLoss(weight=torch.ones(3)),
        "weights": {"l2": 0.0},
    }
    entropy, weights = held["criterion"], held["weights"]

    def loss(model: Any, batch: Any) -> torch.Tensor:
        out = model(batch["x"])
        with torch.no_grad():
            wanted = teacher(batch["x"])
        return (
            entropy(out, batch["y"])
            + 0.1 * (out - wanted).square().mean()
            + weights["l2"] * model.last.weight.square().sum()
        )

    return loss


def _one(world: World, value: float, trained: bool = False) -> torch.Tensor:
    """One parameter of the model."""
    found = [p for p in world.model.parameters() if p.requires_grad or not trained]
    return found[int(value * (len(found) - 1))]


# -- tensors ----------------------------------------------------------------------------------------------------


@change
def nothing(world: World, value: float) -> None:
    pass


@change
def clips_by_data(world: World, value: float) -> None:
    for p in world.model.parameters():
        p.data.clamp_(-0.2 - value, 0.2 + value)


@change
def sets_data(world: World, value: float) -> None:
    world.model.last.bias.data = torch.full((3,), value)


@change
def scales_in_place(world: World, value: float) -> None:
    with torch.no_grad():
        _one(world, value).mul_(0.5 + value)


@change
def writes_by_numpy(world: World, value: float) -> None:
    world.model.last.bias.detach().numpy()[0] = value


@change
def writes_a_view(world: World, value: float) -> None:
    with torch.no_grad():
        world.model.last.weight[0, :4] = value


@change
def scales_together(world: World, value: float) -> None:
    with torch.no_grad():
        torch._foreach_mul_(list(world.model.parameters()), 0.9)


@change
def makes_a_layer_anew(world: World, value: float) -> None:
    torch.manual_seed(int(value * 8))
    world.model.last.reset_parameters()


@change
def resets_statistics(world: World, value: float) -> None:
    world.model.norm.reset_running_stats()


@change
def writes_a_buffer(world: World, value: float) -> None:
    world.model.centre.fill_(value)


@change
def takes_a_state(world: World, value: float) -> None:
    world.more["kept"] = copy.deepcopy((world.model.state_dict(), world.optimizer.state_dict()))


@change
def goes_back_to_it(world: World, value: float) -> None:
    if "kept" in world.more:
        kept = copy.deepcopy(world.more["kept"])
        world.model.load_state_dict(kept[0])
        if value > 0.5:
            world.optimizer.load_state_dict(kept[1])


@change
def reads(world: World, value: float) -> list[float]:
    return [float(p.detach().norm()) for p in world.model.parameters()]


@change
def validates(world: World, value: float) -> list[float]:
    world.model.eval()
    with torch.no_grad():
        found = float(cross_entropy(world.model, world.more["batch"]))
    world.model.train()
    return [found]


@change
def teaches(world: World, value: float) -> None:
    for p, q in zip(world.more["teacher"].parameters(), world.model.parameters(), strict=True):
        if value < 0.5:
            p.data.mul_(0.9).add_(q.data, alpha=0.1)
        else:
            with torch.no_grad():
                p.lerp_(q, 0.1)


@change
def weighs_classes(world: World, value: float) -> None:
    world.more["criterion"].weight[int(value * 2)] = 0.5 + value


# -- what a program is captured for -----------------------------------------------------------------------------


@change
def freezes(world: World, value: float) -> None:
    world.model.first.requires_grad_(False)


@change
def thaws(world: World, value: float) -> None:
    world.model.first.requires_grad_(True)


@change
def moves_beta(world: World, value: float) -> None:
    world.model.beta = 1.0 if value < 0.5 else 2.0


@change
def moves_a_dictionary(world: World, value: float) -> None:
    world.model.cfg["more"][1] = 0.2 if value < 0.5 else 0.7


@change
def moves_momentum(world: World, value: float) -> None:
    world.model.norm.momentum = 0.1 if value < 0.5 else 0.3


@change
def moves_the_class(world: World, value: float) -> None:
    type(world.model).scale = 1.0 if value < 0.5 else 1.5


@change
def cools(world: World, value: float) -> None:
    if value < 0.5:
        world.model.temperature.mul_(0.9)
    else:
        world.model.temperature = torch.tensor(0.5 + value)


@change
def stops_statistics(world: World, value: float) -> None:
    world.model.norm.train(value < 0.5)


@change
def moves_the_loss(world: World, value: float) -> None:
    world.more["weights"]["l2"] = 0.0 if value < 0.5 else 0.2


@change
def smooths(world: World, value: float) -> None:
    world.more["criterion"].label_smoothing = 0.0 if value < 0.5 else 0.2


# -- the optimizer ----------------------------------------------------------------------------------------------


@change
def sets_the_rate(world: World, value: float) -> None:
    for group in world.optimizer.param_groups:
        group["lr"] = 1e-3 + 1e-2 * value


@change
def sets_weight_decay(world: World, value: float) -> None:
    world.optimizer.param_groups[0]["weight_decay"] = 0.1 * value


@change
def loads_its_own_state(world: World, value: float) -> None:
    world.optimizer.load_state_dict(copy.deepcopy(world.optimizer.state_dict()))


@change
def keeps_its_state(world: World, value: float) -> None:
    """Not a copy: what the dictionary shows goes on with the training, in eager too."""
    world.more["shared"] = world.optimizer.state_dict()


@change
def loads_what_it_kept(world: World, value: float) -> None:
    if "shared" in world.more:
        world.optimizer.load_state_dict(world.more["shared"])


@change
def shrinks_moments(world: World, value: float) -> None:
    for entry in world.optimizer.state.values():
        for held in entry.values():
            if isinstance(held, torch.Tensor) and held.dim() > 0:
                held.mul_(0.5 + value / 2)


@change
def forgets_moments(world: World, value: float) -> None:
    if value > 0.5:
        world.optimizer.state.clear()


# -- the step itself, which eager has none of ------------------------------------------------------------------


@change
def syncs(world: World, value: float) -> None:
    if "compiled" in world.more:
        world.more["compiled"].sync_to_torch()


@change
def asks_the_step(world: World, value: float) -> None:
    step = world.more.get("compiled")
    if step is not None and value < 0.5:
        step.evaluate(world.more["batch"])
    elif step is not None:
        step.state_dict()


@change
def writes_while_synced(world: World, value: float) -> None:
    def write() -> None:
        world.model.last.weight.data.mul_(0.5 + value / 2)

    if "compiled" in world.more:
        with world.more["compiled"].synced():
            write()
    else:
        write()


@change
def a_smaller_batch(world: World, value: float) -> None:
    """One step of another program."""
    rows = 7 if value < 0.5 else 5
    world.more["smaller"] = {key: tensor[:rows] for key, tensor in world.more["batch"].items()}
    world.more.setdefault("extra", []).append(float(world.step(world.more["smaller"])))
