"""A change, then somebody who reads, then a step: whoever reads takes the trained values, and the change is not lost.

A read fills the live module with what was trained. What the loop had changed before it (a layer frozen or replaced, a
tensor written that the program reads) is no less news for that; the fuzzer found a read that made it forgotten.
"""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tests.bridge.between.loops import Net, World, batches, cross_entropy, eager, equal

OUTER = {"scale": torch.tensor(1.0)}


class Warm(Net):
    """With tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.gains = torch.tensor(1.0), [torch.tensor(1.0)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / self.temperature * self.gains[0]


def scaled(world: World) -> Any:
    return lambda model, batch: nn.functional.cross_entropy(model(batch["x"]) * OUTER["scale"], batch["y"])


@pytest.fixture(autouse=True)
def begin() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


# -- changes ----------------------------------------------------------------------------------------------------


def freezes(world: World) -> None:
    world.model.first.weight.requires_grad_(False)


def replaces_a_layer(world: World) -> None:
    torch.manual_seed(7)
    for p in world.model.last.parameters():
        world.optimizer.state.pop(p)
    world.model.last = nn.Linear(16, 3)
    world.optimizer.param_groups[0]["params"] = list(world.model.parameters())


def replaces_a_buffer(world: World) -> None:
    world.model.norm.running_mean = torch.ones(16)


def stops_statistics(world: World) -> None:
    world.model.norm.eval()


def cools(world: World) -> None:
    world.model.temperature.mul_(0.5)


def writes_in_a_list(world: World) -> None:
    world.model.gains[0].mul_(0.5)


def writes_what_the_loss_holds(world: World) -> None:
    OUTER["scale"].mul_(0.5)


def hooks(world: World) -> None:
    world.model.last.register_forward_hook(lambda part, given, out: out * 2)


def writes_data(world: World) -> None:
    world.model.last.weight.data.mul_(0.5)


def sets_its_memory(world: World) -> None:
    with torch.no_grad():
        world.model.last.weight.set_(torch.full((3, 16), 0.1))  # no __torch_function__ is asked


class Halved(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 0.5 + 0.1


def parametrizes(world: World) -> None:
    parametrize.register_parametrization(world.model.last, "weight", Halved())
    world.optimizer.param_groups[0]["params"] = list(world.model.parameters())


def clears_momentum(world: World) -> None:
    for entry in world.optimizer.state.values():
        entry["momentum_buffer"].zero_()


def goes_back(world: World) -> None:
    world.optimizer.load_state_dict(world.more["optimizer"])


def goes_back_with_the_weights(world: World) -> None:
    world.model.load_state_dict(world.more["model"])
    world.optimizer.load_state_dict(world.more["optimizer"])


def forgets_its_state(world: World) -> None:
    world.optimizer.state.clear()


def puts_another_state(world: World) -> None:
    kept = {p: {k: v * 0.5 for k, v in entry.items()} for p, entry in world.optimizer.state.items()}
    world.optimizer.state = defaultdict(dict, kept)


# -- readers ----------------------------------------------------------------------------------------------------


def one_weight(world: World) -> None:
    float(world.model.first.weight.detach().sum())


def its_state(world: World) -> None:
    world.model.state_dict()


def the_optimizers_state(world: World) -> None:
    world.optimizer.state_dict()


def moments(world: World) -> None:
    list(world.optimizer.state.values())


def a_copy(world: World) -> None:
    copy.deepcopy(world.model)


def _ours(function: Callable[[Any], Any]) -> Callable[[World], None]:
    def reader(world: World) -> None:
        if "compiled" in world.more:
            function(world.more["compiled"])

    reader.__name__ = getattr(function, "__name__", "")
    return reader


def sync_to_torch(step: Any) -> None:
    step.sync_to_torch()


def load_from_torch(step: Any) -> None:
    step.load_from_torch()


def evaluate(step: Any) -> None:
    step.evaluate(batches()[0])


def synced(step: Any) -> None:
    with step.synced():
        pass


CHANGES = [
    freezes,
    replaces_a_layer,
    replaces_a_buffer,
    stops_statistics,
    cools,
    writes_in_a_list,
    writes_what_the_loss_holds,
    hooks,
    writes_data,
    sets_its_memory,
    parametrizes,
    clears_momentum,
    goes_back,
    goes_back_with_the_weights,
    forgets_its_state,
    puts_another_state,
]
READERS = [
    one_weight,
    its_state,
    the_optimizers_state,
    moments,
    a_copy,
    *map(_ours, (sync_to_torch, load_from_torch, evaluate, synced)),
]


def named(function: Any) -> str:
    return function.__name__


@pytest.mark.parametrize("change", CHANGES, ids=named)
@pytest.mark.parametrize("reader", READERS, ids=named)
def test_a_change_outlives_who_reads_after_it(change: Any, reader: Any) -> None:
    def loop(world: World) -> list[float]:
        OUTER["scale"].fill_(1.0)
        losses = []
        for i, batch in enumerate(batches(5)):
            if i == 1:
                world.more["model"] = copy.deepcopy(world.model.state_dict())
                world.more["optimizer"] = copy.deepcopy(world.optimizer.state_dict())
            if i == 3:
                change(world)
                reader(world)
            losses.append(world.step(batch))
        return losses

    OUTER["scale"] = torch.tensor(1.0)
    equal(loop, build=Warm, loss=scaled, optimizer=lambda p: torch.optim.SGD(p, lr=5e-2, momentum=0.9))


@pytest.mark.parametrize("reader", [its_state, the_optimizers_state, _ours(sync_to_torch)], ids=named)
def test_a_certificate_that_waits_is_not_judged_on_a_layer_that_was_frozen_since(reader: Any) -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate([*batches(2), batches(1, rows=7)[0], *batches(2)]):
            if i == 3:  # the step before this one was the first of its program
                freezes(world)
                reader(world)
            losses.append(world.step(batch))
        return losses

    OUTER["scale"] = torch.tensor(1.0)
    equal(loop, build=Warm, loss=scaled, optimizer=lambda p: torch.optim.SGD(p, lr=5e-2, momentum=0.9))


@pytest.mark.parametrize(
    "reader", [the_optimizers_state, *map(_ours, (evaluate, load_from_torch))], ids=named
)
def test_a_write_that_nobody_saw_is_told_by_every_reader(reader: Any, tmp_path: Path) -> None:
    import detente

    torch.manual_seed(0)
    model = Net()
    world = World(model, torch.optim.SGD(model.parameters(), lr=5e-2), lambda batch: None)
    view = model.last.weight.view(-1)  # taken before: nobody sees what is done with it
    step = detente.compile(
        model,
        lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"]),
        world.optimizer,
        example_batch=batches()[0],
        cache=False,
    )
    world.more["compiled"] = step
    for batch in batches(2):
        step(batch)
    with torch.no_grad():
        view.mul_(0.5)
    with pytest.raises(
        detente.bridge.Refused, match=r"last\.weight was written after compile through something"
    ):
        reader(world)
    step.sync_to_torch()
    step(batches()[0])


@pytest.mark.parametrize(
    "change", [clears_momentum, goes_back, cools, writes_data, one_weight, moments], ids=named
)
def test_a_file_that_is_loaded_wins_over_what_came_before_it(change: Any, tmp_path: Path) -> None:
    import detente

    def trained(disturbed: bool) -> list[float]:
        torch.manual_seed(0)
        model = Warm()
        world = World(model, torch.optim.SGD(model.parameters(), lr=5e-2, momentum=0.9), lambda batch: None)
        loss = scaled(world)
        step = detente.compile(model, loss, world.optimizer, example_batch=batches()[0], cache=False)
        losses = []
        for i, batch in enumerate(batches(6)):
            if i == 1:
                world.more["optimizer"] = copy.deepcopy(world.optimizer.state_dict())
            if i == 3:
                step.save(tmp_path / "a")
            if i == 3 and disturbed:
                step(batch)
                change(world)
                step.load(tmp_path / "a")
                step.sync_to_torch()
            losses.append(float(step(batch)))
        return losses

    OUTER["scale"] = torch.tensor(1.0)
    assert trained(True) == trained(False)


@pytest.mark.parametrize(
    "change", [clears_momentum, goes_back, forgets_its_state, puts_another_state], ids=named
)
def test_two_steps_of_one_optimizer_both_take_what_is_done_to_it(change: Any) -> None:
    import detente

    def trained(compiled: bool) -> list[float]:
        torch.manual_seed(0)
        model = Warm()
        world = World(model, torch.optim.SGD(model.parameters(), lr=5e-2, momentum=0.9), lambda batch: None)
        losses = [scaled(world), lambda model, batch: model(batch["x"]).square().mean()]
        how: dict[str, Any] = {"example_batch": batches()[0], "cache": False}
        if compiled:
            first = detente.compile(model, losses[0], world.optimizer, **how)
            steps: list[Any] = [first, detente.compile(model, losses[1], world.optimizer, share=first, **how)]
        else:
            steps = [eager(model, loss, world.optimizer) for loss in losses]
        found = []
        for i, batch in enumerate(batches(8)):
            if i == 1:
                world.more["optimizer"] = copy.deepcopy(world.optimizer.state_dict())
            if i in (3, 4, 7):
                change(world)
            found.append(float(steps[i % 3 == 1](batch)))
        return found

    OUTER["scale"] = torch.tensor(1.0)
    torch.testing.assert_close(trained(True), trained(False), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("reader", READERS, ids=named)
def test_averages_outlive_who_reads(reader: Any) -> None:
    import detente

    def averaged(disturbed: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = Net()
        world = World(model, torch.optim.SGD(model.parameters(), lr=5e-2, momentum=0.9), lambda batch: None)
        how: dict[str, Any] = {"example_batch": batches()[0], "cache": False, "ema": 0.9}
        step = world.more["compiled"] = detente.compile(model, cross_entropy, world.optimizer, **how)
        for i, batch in enumerate(batches(5)):
            if i == 3 and disturbed:
                reader(world)
            step(batch)
        return step.averages()

    torch.testing.assert_close(averaged(True), averaged(False))


@pytest.mark.parametrize(
    "kind", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.NAdam]
)
@pytest.mark.parametrize("reader", [its_state, moments, _ours(sync_to_torch), _ours(evaluate)], ids=named)
def test_a_state_that_was_there_at_a_capture_may_go(kind: Any, reader: Any) -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(6)):
            if i == 1:  # captured anew, from a state that is there
                freezes(world)
            if i == 3:
                world.optimizer.state.clear()
                reader(world)
            if i == 5:
                world.optimizer.state.pop(world.model.last.weight)
                reader(world)
            losses.append(world.step(batch))
        return losses

    equal(loop, optimizer=lambda p: kind(p, lr=1e-3))


def test_a_placed_batch_is_certified_by_what_was_placed() -> None:
    import detente

    torch.manual_seed(0)
    model = Net()
    how: dict[str, Any] = {"example_batch": batches()[0], "cache": False}
    sgd = torch.optim.SGD(model.parameters(), lr=5e-2)
    step = detente.compile(model, cross_entropy, sgd, **how)
    buffer = {key: tensor.clone() for key, tensor in batches()[0].items()}
    for batch in batches(3):
        for key, tensor in batch.items():
            buffer[key].copy_(tensor)
        placed = step.place(buffer)
        buffer["x"].fill_(100.0)
        step(placed)
    assert step.settled().ok


def clamps(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.2, 0.2)


def clamps_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.clamp_(-0.2, 0.2)


def clamps_in_numpy(model: nn.Module) -> None:
    for p in model.parameters():
        shown = p.detach().numpy()
        shown[:] = shown.clip(-0.2, 0.2)


@pytest.mark.parametrize("clamp", [clamps, clamps_data, clamps_in_numpy], ids=named)
@pytest.mark.parametrize("turns", ["0100101", "1011010", "0011001"])
def test_what_is_written_between_two_steps_of_one_module_is_taken_once(clamp: Any, turns: str) -> None:
    """A Wasserstein GAN's clipping, with every parameter in it."""
    import detente

    def trained(compiled: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = Warm()
        losses = [cross_entropy, lambda model, batch: model(batch["x"]).square().mean()]
        optimizers = [
            torch.optim.SGD([*model.first.parameters(), *model.norm.parameters()], lr=0.05, momentum=0.9),
            torch.optim.SGD(model.last.parameters(), lr=0.05, momentum=0.9),
        ]
        how: dict[str, Any] = {"example_batch": batches()[0], "cache": False}
        if compiled:
            first = detente.compile(model, losses[0], optimizers[0], **how)
            steps: list[Any] = [first, detente.compile(model, losses[1], optimizers[1], share=first, **how)]
        else:
            steps = [
                eager(model, loss, optimizer) for loss, optimizer in zip(losses, optimizers, strict=True)
            ]
        found = []
        for i, batch in enumerate(batches(len(turns))):
            if i in (2, 4):
                clamp(model)
            if not compiled:
                model.zero_grad()
            found.append(float(steps[int(turns[i])](batch)))
        return found, {n: t.clone() for n, t in model.state_dict().items()}

    ours, wanted = trained(True), trained(False)
    torch.testing.assert_close(ours, wanted, rtol=2e-4, atol=2e-5)
