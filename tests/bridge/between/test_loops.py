"""What loops change between their steps is taken over: losses, parameters and buffers are eager's."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from detente import bridge
from tests.bridge.between.loops import STEPS, Net, World, batches, cross_entropy, equal, run


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


# -- tensors ----------------------------------------------------------------------------------------------------


def clips_through_data(world: World) -> list[float]:
    losses = []
    for batch in batches():
        losses.append(world.step(batch))
        for p in world.model.parameters():
            p.data.clamp_(-0.1, 0.1)
    return losses


def clips_under_no_grad(world: World) -> list[float]:
    losses = []
    for batch in batches():
        losses.append(world.step(batch))
        with torch.no_grad():
            world.model.first.weight.clamp_(-0.1, 0.1)
    return losses


def sets_data(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches()):
        losses.append(world.step(batch))
        if i == 3:
            world.model.last.bias.data = torch.full((3,), 0.25)
    return losses


def writes_through_numpy(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches()):
        losses.append(world.step(batch))
        if i in (2, 4):
            world.model.last.bias.detach().numpy()[:] = 0.5
    return losses


def scales_all_at_once(world: World) -> list[float]:
    losses = []
    for batch in batches():
        losses.append(world.step(batch))
        with torch.no_grad():
            torch._foreach_mul_(list(world.model.parameters()), 0.99)
    return losses


def resets_running_statistics(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches()):
        losses.append(world.step(batch))
        if i == 3:
            world.model.norm.reset_running_stats()
    return losses


def loads_a_state_dict(world: World) -> list[float]:
    losses, kept = [], None
    for i, batch in enumerate(batches()):
        losses.append(world.step(batch))
        if i == 2:
            kept = copy.deepcopy(world.model.state_dict())
        if i == 5:
            world.model.load_state_dict(kept)
    return losses


def goes_back_with_its_optimizer(world: World) -> list[float]:
    losses, kept = [], None
    for i, batch in enumerate(batches()):
        losses.append(world.step(batch))
        if i == 2:
            kept = copy.deepcopy((world.model.state_dict(), world.optimizer.state_dict()))
        if i == 5:
            world.model.load_state_dict(kept[0])
            world.optimizer.load_state_dict(kept[1])
    return losses


def reads_norms(world: World) -> list[float]:
    losses = []
    for batch in batches():
        losses.append(world.step(batch))
        losses.append(sum(float(p.norm()) for p in world.model.parameters()))
    return losses


def validates(world: World) -> list[float]:
    losses = []
    for batch in batches():
        losses.append(world.step(batch))
        world.model.eval()
        with torch.no_grad():
            losses.append(float(cross_entropy(world.model, batch)))
        world.model.train()
    return losses


def saves_and_averages(world: World) -> list[float]:
    losses, averaged = [], torch.optim.swa_utils.AveragedModel(world.model)
    for batch in batches():
        losses.append(world.step(batch))
        averaged.update_parameters(world.model)
        file = io.BytesIO()
        torch.save(world.model.state_dict(), file)
        file.seek(0)
        losses.append(float(torch.load(file)["last.bias"].sum()))
    return [*losses, *(float(p.sum()) for p in averaged.parameters())]


def freezes_and_thaws(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches()):
        if i in (2, 5):
            for p in world.model.first.parameters():
                p.requires_grad_(i == 5)
        losses.append(world.step(batch))
    return losses


def thaws_layer_by_layer(world: World) -> list[float]:
    parts = [world.model.norm, world.model.first]
    for part in parts:
        part.requires_grad_(False)
    losses = []
    for i, batch in enumerate(batches()):
        if i in (3, 6):
            parts.pop(0).requires_grad_(True)
        losses.append(world.step(batch))
    return losses


def replaces_a_part(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches()):
        if i == 4:
            world.model.drop = nn.Hardtanh(-0.1, 0.1)
        losses.append(world.step(batch))
    return losses


# -- Python -----------------------------------------------------------------------------------------------------


def moves_an_attribute(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches(4)):
        world.model.beta = 1.0 + 0.25 * (i // 2)
        losses.append(world.step(batch))
    return losses


def moves_a_dictionary(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches(4)):
        world.model.cfg["w"] = 0.5 + 2.0 * (i > 1)
        losses.append(world.step(batch))
    return losses


def moves_a_nested_list(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches(4)):
        world.model.cfg["more"][1] = 0.2 + 2.0 * (i > 1)
        losses.append(world.step(batch))
    return losses


def schedules_momentum(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches(4)):
        world.model.norm.momentum = 0.1 if i < 2 else 0.5
        losses.append(world.step(batch))
    return losses


def schedules_the_rate(world: World) -> list[float]:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(world.optimizer, STEPS)
    losses = []
    for batch in batches():
        losses.append(world.step(batch))
        schedule.step()
    return losses


def adds_a_hook(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches(4)):
        if i == 2:
            world.model.first.register_forward_hook(lambda module, args, out: out * 2)
        losses.append(world.step(batch))
    return losses


LOOPS = [
    clips_through_data, clips_under_no_grad, sets_data, writes_through_numpy, scales_all_at_once,
    resets_running_statistics, loads_a_state_dict, goes_back_with_its_optimizer, reads_norms, validates,
    saves_and_averages, freezes_and_thaws, thaws_layer_by_layer, replaces_a_part, moves_an_attribute,
    moves_a_dictionary, moves_a_nested_list, schedules_momentum, schedules_the_rate, adds_a_hook,
]  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_a_loop_is_eagers(loop: Any) -> None:
    equal(loop)


def steps(world: World) -> list[float]:
    return [world.step(batch) for batch in batches()]


def test_annealed_dropout_draws_from_the_rate_of_its_step() -> None:
    """Dropout draws other numbers than torch's generator; with a rate of 0 and of 1 there is nothing to draw."""

    def anneals(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(4)):
            world.model.drop.p = 0.0 if i < 2 else 1.0
            losses.append(world.step(batch))
        return losses

    equal(anneals)


class Counts(Net):
    """A counter that forward moves, and a schedule that reads it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return super().forward(x) * min(1.0, 0.25 * self.seen)


def test_a_counter_in_forward_moves_with_every_step() -> None:
    def four(world: World) -> list[float]:
        return [world.step(batch) for batch in batches(4)]

    world = equal(four, build=Counts)
    assert world.model.seen == 4


def test_the_loss_holds_a_weight_that_moves() -> None:
    weight = {"kl": 0.0}

    def loss(world: World) -> Any:
        return lambda model, batch: (
            cross_entropy(model, batch) + weight["kl"] * model.last.weight.square().sum()
        )

    def anneals(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(4)):
            weight["kl"] = 0.5 * (i // 2)
            losses.append(world.step(batch))
        return losses

    equal(anneals, loss=loss)


def teacher(world: World) -> Any:
    """A mean teacher in the loss's closure."""
    held = copy.deepcopy(world.model)
    held.requires_grad_(False).eval()
    world.more["teacher"] = held

    def loss(model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            wanted = held(batch["x"])
        return cross_entropy(model, batch) + (model(batch["x"]) - wanted).square().mean()

    return loss


@pytest.mark.parametrize("how", ["data", "no_grad", "load_state_dict"])
def test_a_mean_teacher_in_the_loss_is_the_teacher_of_that_step(how: str) -> None:
    def loop(world: World) -> list[float]:
        losses, held = [], world.more["teacher"]
        for batch in batches():
            losses.append(world.step(batch))
            if how == "data":
                for p, q in zip(held.parameters(), world.model.parameters(), strict=True):
                    p.data.mul_(0.9).add_(q.data, alpha=0.1)
            elif how == "no_grad":
                with torch.no_grad():
                    for p, q in zip(held.parameters(), world.model.parameters(), strict=True):
                        p.lerp_(q, 0.1)
            else:
                held.load_state_dict(world.model.state_dict())
        return [*losses, *(float(p.sum()) for p in held.parameters())]

    equal(loop, loss=teacher)


def test_class_weights_in_a_closure_may_move() -> None:
    weights = torch.ones(3)

    def loss(world: World) -> Any:
        weights.fill_(1.0)
        return lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"], weight=weights)

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches()):
            losses.append(world.step(batch))
            weights[i % 3] = 1.0 + i
        return losses

    equal(loop, loss=loss)


# -- inside forward ---------------------------------------------------------------------------------------------


class Centred(nn.Module):
    """A centre that forward binds anew, as self-supervised losses do."""

    how = "attribute"

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.last(x)
        with torch.no_grad():
            new = 0.9 * self.centre + 0.1 * out.mean(0)
        centred = out - self.centre
        if self.how == "attribute":
            self.centre = new
        elif self.how == "setattr":
            setattr(self, "centre", new)  # noqa: B010
        else:
            self._buffers["centre"] = new
        return centred


@pytest.mark.parametrize("how", ["attribute", "setattr", "table"])
def test_a_buffer_that_forward_binds_anew_is_written(how: str) -> None:
    def build() -> nn.Module:
        model = Centred()
        model.how = how
        return model

    world = equal(steps, build=build)
    assert float(world.model.centre.abs().sum()) > 0


class Keeps(nn.Module):
    """Keeps its last output where somebody may look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.out = nn.Linear(6, 3), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.out = self.last(x)
        return self.out


class Remembers(Keeps):
    """And reads it in the next step."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.out
        self.out = self.last(x)
        return self.out if before is None else self.out + before.detach()


def test_an_output_that_is_only_kept_is_no_matter_and_nothing_fake_stays() -> None:
    *_, eager = run(steps, bridge=False, build=Keeps)
    model = equal(steps, build=Keeps).model
    torch.testing.assert_close(model.out.detach(), eager.model.out.detach(), rtol=2e-4, atol=2e-5)


def test_an_output_that_the_next_step_reads_is_refused_by_name() -> None:
    with pytest.raises(bridge.Refused, match=r"held-tensor.*out") as raised:
        run(steps, bridge=True, build=Remembers)
    (reason,) = raised.value.reasons
    assert reason.where is not None and reason.where.code == "self.out = self.last(x)"


@pytest.mark.parametrize("draw", ["numpy", "python", "own"])
def test_numbers_that_are_not_torchs_are_refused_by_name(draw: str) -> None:
    import random

    own = np.random.default_rng(3)

    def loss(world: World) -> Any:
        def mixed(model: Any, batch: Any) -> torch.Tensor:
            share = {"numpy": np.random.rand, "python": random.random, "own": own.random}[draw]()
            return cross_entropy(model, batch) * share

        return mixed

    before = random.getstate(), repr(np.random.get_state())
    with pytest.raises(bridge.Refused, match=r"generator"):
        run(steps, bridge=True, loss=loss)
    assert before == (random.getstate(), repr(np.random.get_state()))


# -- nothing is lost --------------------------------------------------------------------------------------------


def test_a_write_through_an_alias_of_before_compile_is_refused_and_the_training_is_kept() -> None:
    taken: list[torch.Tensor] = []

    class Taken(Net):
        def __init__(self) -> None:
            super().__init__()
            taken.append(self.last.bias.detach())

    def loop(world: World) -> list[float]:
        (alias,) = taken
        losses = [world.step(batch) for batch in batches()[:4]]
        trained = world.more["compiled"].state_dict()
        alias.add_(1.0)
        with pytest.raises(bridge.Refused, match="written after compile"):
            world.step(batches()[4])
        world.more["compiled"].sync_to_torch()
        for name, tensor in world.model.state_dict().items():
            assert torch.equal(tensor, trained[name]), name
        return [*losses, world.step(batches()[4])]

    losses, *_ = run(loop, bridge=True, build=Taken)
    assert losses[-1] < losses[0]


def test_the_step_is_its_modules_own_again_when_it_is_gone() -> None:
    import gc

    _, _, world = run(steps, bridge=True)
    model = world.model
    world.more.clear()
    world.step = lambda batch: None
    del world
    gc.collect()
    assert type(model.first.weight) is nn.Parameter and type(model.norm.running_mean) is torch.Tensor


def test_synced_and_evaluate_show_the_weights_of_now() -> None:
    def loop(world: World) -> list[float]:
        losses = [world.step(batch) for batch in batches()[:3]]
        if "compiled" not in world.more:
            world.model.eval()
            with torch.no_grad():
                losses.append(float(cross_entropy(world.model, batches()[0])))
            world.model.train()
            with torch.no_grad():
                world.model.last.bias.zero_()
        else:
            step = world.more["compiled"]
            losses.append(float(step.evaluate(batches()[0])))
            assert world.model.training
            with step.synced() as model:
                assert type(model.last.bias) is nn.Parameter
                model.last.bias.data.numpy()[:] = 0
        return losses + [world.step(batch) for batch in batches()[3:]]

    equal(loop)


def test_restart_forgets_what_the_live_optimizer_holds() -> None:
    def loop(world: World) -> list[float]:
        for batch in batches():
            world.step(batch)
        step = world.more["compiled"]
        first = step.state_dict()
        step.sync_to_torch()
        step.restart(first)
        assert all(
            not t.any() for leaves in step.moments().values() for k, t in leaves.items() if k == "exp_avg"
        )
        assert first.keys() == step.state_dict().keys()
        return []

    run(loop, bridge=True)


def test_a_checkpoint_of_another_seed_is_certified_by_its_own(tmp_path: Any) -> None:
    def build() -> nn.Module:
        model = Net()
        model.drop.p = 0.5
        return model

    def saves(world: World) -> list[float]:
        world.step(batches()[0])
        world.more["compiled"].save(tmp_path / "step.safetensors")
        return [world.step(batch) for batch in batches()[1:3]]

    def loads(world: World) -> list[float]:
        world.more["compiled"].load(tmp_path / "step.safetensors")
        return [world.step(batch) for batch in batches()[1:3]]

    wanted, *_ = run(saves, bridge=True, build=build)
    torch.manual_seed(9)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = bridge.compile(model, cross_entropy, optimizer, example_batch=batches()[0], seed=11, cache=False)
    assert loads(World(model, optimizer, lambda b: float(step(b)), {"compiled": step})) == wanted


def clips_then(what: Any) -> Any:
    """A write that no version tells, and before the next step something that brings the step's own values back."""

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches()):
            losses.append(world.step(batch))
            with torch.no_grad():
                for p in world.model.parameters():
                    p.data.clamp_(-0.05, 0.05)
            if i == 2:
                what(world)
        return losses

    return loop


def freezes_a_layer(world: World) -> None:
    world.model.first.weight.requires_grad_(False)


def asks_for_the_optimizers_state(world: World) -> None:
    world.optimizer.state_dict()


def syncs(world: World) -> None:
    if "compiled" in world.more:
        world.more["compiled"].sync_to_torch()


def reads_the_steps_own(world: World) -> None:
    step = world.more.get("compiled")
    found = world.model.state_dict() if step is None else step.state_dict()
    assert all(float(found[n].abs().max()) <= 0.0501 for n, _ in world.model.named_parameters())


def edits_moments_and_syncs(world: World) -> None:
    for held in world.optimizer.state.values():
        held["exp_avg"].mul_(0.5)
    syncs(world)


@pytest.mark.parametrize(
    "what",
    [freezes_a_layer, asks_for_the_optimizers_state, syncs, reads_the_steps_own, edits_moments_and_syncs],
    ids=lambda f: f.__name__,
)
def test_a_write_survives(what: Any) -> None:
    equal(clips_then(what))


def test_a_write_is_in_what_is_saved(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = bridge.compile(model, cross_entropy, optimizer, example_batch=batches()[0], seed=3, cache=False)
    for batch in batches()[:3]:
        float(step(batch))
    with torch.no_grad():
        model.last.bias.data.fill_(7.0)
    next(iter(optimizer.state.values()))["exp_avg"].fill_(3.0)
    step.save(tmp_path / "s.safetensors")
    step.restart(Net().state_dict())
    step.load(tmp_path / "s.safetensors")
    assert float(step.state_dict()["last.bias"].mean()) == 7.0
    assert any(float(m["exp_avg"].mean()) == 3.0 for m in step.moments().values())


def test_a_hidden_write_is_told_by_a_read() -> None:
    torch.manual_seed(0)
    model = Net()
    alias = model.last.bias.detach()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = bridge.compile(model, cross_entropy, optimizer, example_batch=batches()[0], seed=3, cache=False)
    for batch in batches()[:3]:
        float(step(batch))
    alias.fill_(7.0)
    with pytest.raises(bridge.Refused, match=r"last\.bias was written after compile"):
        model.last.bias.norm()
    step.sync_to_torch()
    assert float(model.last.bias.abs().max()) < 2.0
