"""More loops that change something between steps: schedules, surgery on weights and optimizers, criteria with state."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, prune, vector_to_parameters

import detente
from detente import bridge
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal, run, stepping


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


# -- weights ----------------------------------------------------------------------------------------------------


def projects_rows(world: World) -> list[float]:
    def change(i: int) -> None:
        with torch.no_grad():
            weight = world.model.last.weight
            weight.div_(weight.norm(dim=1, keepdim=True))

    return stepping(world, change)


def looks_ahead(world: World) -> list[float]:
    """Slow weights, by ``.data`` alone, as Lookahead is written."""
    slow = [p.data.clone() for p in world.model.parameters()]

    def change(i: int) -> None:
        if i % 3 == 2:
            for p, s in zip(world.model.parameters(), slow, strict=True):
                s.add_(p.data - s, alpha=0.5)
                p.data.copy_(s)

    return stepping(world, change)


def adds_noise(world: World) -> list[float]:
    made = torch.Generator().manual_seed(3)

    def change(i: int) -> None:
        with torch.no_grad():
            for p in world.model.parameters():
                p.add_(1e-2 * torch.randn(p.shape, generator=made))

    return stepping(world, change)


def makes_a_layer_anew(world: World) -> list[float]:
    def change(i: int) -> None:
        if i == 4:
            torch.manual_seed(7)
            world.model.last.reset_parameters()

    return stepping(world, change)


def applies_an_initialisation(world: World) -> list[float]:
    def change(i: int) -> None:
        if i == 3:
            world.model.apply(lambda m: nn.init.zeros_(m.bias) if isinstance(m, nn.BatchNorm1d) else None)

    return stepping(world, change)


def goes_through_a_vector(world: World) -> list[float]:
    def change(i: int) -> None:
        if i in (3, 5):
            vector = parameters_to_vector(world.model.parameters())
            vector_to_parameters(vector * 0.9, world.model.parameters())

    return stepping(world, change)


def swaps_an_average_in_to_validate(world: World) -> list[float]:
    average, losses = copy.deepcopy(world.model.state_dict()), []
    for batch in batches():
        losses.append(world.step(batch))
        now = world.model.state_dict()
        for name, tensor in average.items():
            if tensor.is_floating_point():
                tensor.lerp_(now[name], 0.3)
        kept = copy.deepcopy(now)
        world.model.load_state_dict(average)
        world.model.eval()
        with torch.no_grad():
            losses.append(float(cross_entropy(world.model, batch)))
        world.model.train()
        world.model.load_state_dict(kept)
    return losses


def keeps_the_best(world: World) -> list[float]:
    losses, best = [], None
    for i, batch in enumerate(batches()):
        losses.append(world.step(batch))
        if i == 4:
            best = copy.deepcopy(world.model)
    assert best is not None
    best.eval()
    with torch.no_grad():
        return [*losses, float(cross_entropy(best, batches()[0]))]


def assigns_a_state(world: World) -> list[float]:
    """``assign=True`` puts other parameters in place, of which the optimizer knows nothing: they stay as they are."""

    def change(i: int) -> None:
        if i == 3:
            state = {n: t.detach().clone() for n, t in world.model.state_dict().items()}
            world.model.load_state_dict(state, assign=True)

    return stepping(world, change, 5)


def replaces_a_parameter(world: World) -> list[float]:
    def change(i: int) -> None:
        if i == 3:
            world.model.last.bias = nn.Parameter(torch.full((3,), 0.1))
            world.optimizer.param_groups[0]["params"] = list(world.model.parameters())

    return stepping(world, change, 6)


def prunes(world: World) -> list[float]:
    def change(i: int) -> None:
        if i == 3:
            prune.l1_unstructured(world.model.last, "weight", amount=0.5)

    return stepping(world, change, 6)


# -- the optimizer ----------------------------------------------------------------------------------------------


def schedules_weight_decay(world: World) -> list[float]:
    def change(i: int) -> None:
        world.optimizer.param_groups[0]["weight_decay"] = 0.01 * i

    return stepping(world, change)


def changes_betas(world: World) -> list[float]:
    def change(i: int) -> None:
        if i == 4:
            world.optimizer.param_groups[0]["betas"] = (0.8, 0.99)

    return stepping(world, change)


def sets_the_rate_by_hand(world: World) -> list[float]:
    def change(i: int) -> None:
        for group in world.optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + i)

    return stepping(world, change)


def adds_a_group(world: World) -> list[float]:
    first = world.optimizer.param_groups[0]
    late = first["params"].pop()

    def change(i: int) -> None:
        if i == 3:
            world.optimizer.add_param_group({"params": [late], "lr": 3e-3})

    return stepping(world, change, 6)


def clears_its_state(world: World) -> list[float]:
    def change(i: int) -> None:
        if i == 4:
            world.optimizer.state.clear()

    return stepping(world, change)


def zeroes_a_moment(world: World) -> list[float]:
    """As those who set dead neurons on again do."""

    def change(i: int) -> None:
        if i == 4:
            for state in world.optimizer.state.values():
                state["exp_avg"].zero_()

    return stepping(world, change)


def reads_a_moment(world: World) -> list[float]:
    losses = []
    for batch in batches():
        losses.append(world.step(batch))
        losses += [float(s["exp_avg"].norm()) for s in world.optimizer.state.values()]
    return losses


# -- Python -----------------------------------------------------------------------------------------------------


def freezes_statistics(world: World) -> list[float]:
    def change(i: int) -> None:
        if i == 4:
            world.model.norm.eval()

    return stepping(world, change)


def moves_epsilon(world: World) -> list[float]:
    def change(i: int) -> None:
        world.model.norm.eps = 1e-5 if i < 2 else 1e-1

    return stepping(world, change, 4)


def takes_a_hook_away(world: World) -> list[float]:
    handle = world.model.first.register_forward_hook(lambda module, args, out: out * 2)

    def change(i: int) -> None:
        if i == 2:
            handle.remove()

    return stepping(world, change, 4)


def hands_over_a_smaller_batch(world: World) -> list[float]:
    losses = []
    for i, batch in enumerate(batches()):
        losses.append(world.step({n: t[:7] for n, t in batch.items()} if i % 4 == 3 else batch))
    return losses


def changes_the_class(world: World) -> list[float]:
    def change(i: int) -> None:
        Scaled.scale = 1.0 if i < 2 else 3.0

    return stepping(world, change, 4)


class Scaled(Net):
    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


class Warm(Net):
    """A temperature in a plain attribute, a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = torch.tensor(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / self.temperature


def cools_in_place(world: World) -> list[float]:
    def change(i: int) -> None:
        world.model.temperature.mul_(0.8)

    return stepping(world, change)


def cools_by_another_tensor(world: World) -> list[float]:
    def change(i: int) -> None:
        world.model.temperature = torch.tensor(1.0 - 0.2 * (i // 2))

    return stepping(world, change, 4)


class Masked(Net):
    """A mask in numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = np.ones(3, np.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.as_tensor(self.mask.copy())


def writes_a_mask(world: World) -> list[float]:
    def change(i: int) -> None:
        world.model.mask[1] = 1.0 if i < 2 else 0.25

    return stepping(world, change, 4)


def runs_the_model_in_training_mode(world: World) -> list[float]:
    """BatchNorm writes its statistics, and no version of theirs moves."""
    losses = []
    for batch in batches():
        losses.append(world.step(batch))
        with torch.no_grad():
            losses.append(float(world.model(2 * batch["x"]).sum()))
    return losses


def takes_a_step_of_its_own(world: World) -> list[float]:
    losses = []
    for batch in batches():
        losses.append(world.step(batch))
        value = cross_entropy(world.model, batch)
        value.backward()
        world.optimizer.step()
        world.optimizer.zero_grad()
        losses.append(float(value.detach()))
    return losses


PLAIN = [
    projects_rows, looks_ahead, adds_noise, makes_a_layer_anew, applies_an_initialisation, goes_through_a_vector,
    swaps_an_average_in_to_validate, keeps_the_best, replaces_a_parameter, prunes, schedules_weight_decay,
    changes_betas, sets_the_rate_by_hand, adds_a_group, clears_its_state, zeroes_a_moment, reads_a_moment,
    freezes_statistics, moves_epsilon, takes_a_hook_away, hands_over_a_smaller_batch,
    runs_the_model_in_training_mode, takes_a_step_of_its_own,
]  # fmt: skip
BUILT = {
    changes_the_class: Scaled,
    cools_in_place: Warm,
    cools_by_another_tensor: Warm,
    writes_a_mask: Masked,
}


@pytest.mark.parametrize("loop", PLAIN, ids=lambda f: f.__name__)
def test_a_loop_is_eagers(loop: Any) -> None:
    equal(loop)


@pytest.mark.parametrize("loop", BUILT, ids=lambda f: f.__name__)
def test_a_loop_of_its_own_model_is_eagers(loop: Any) -> None:
    equal(loop, build=BUILT[loop])


SMOOTHING = 0.0


def test_a_global_of_the_loss_moves() -> None:
    def loss(world: World) -> Any:
        return lambda model, batch: nn.functional.cross_entropy(
            model(batch["x"]), batch["y"], label_smoothing=SMOOTHING
        )

    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            globals()["SMOOTHING"] = 0.0 if i < 2 else 0.3

        return stepping(world, change, 4)

    equal(loop, loss=loss)


def test_a_criterion_with_attributes_moves() -> None:
    """A module of the loss's: its number and its tensor are set anew."""

    def loss(world: World) -> Any:
        criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
        world.more["criterion"] = criterion
        return lambda model, batch: criterion(model(batch["x"]), batch["y"])

    def loop(world: World) -> list[float]:
        criterion = world.more["criterion"]

        def change(i: int) -> None:
            if i == 2:
                criterion.label_smoothing = 0.2
            if i == 4:
                criterion.weight = torch.tensor([1.0, 2.0, 0.5])

        return stepping(world, change, 6)

    equal(loop, loss=loss)


def test_a_tensor_in_a_dictionary_of_the_loss_is_put_anew() -> None:
    held: dict[str, torch.Tensor] = {}

    def loss(world: World) -> Any:
        held["w"] = torch.ones(3)
        return lambda model, batch: nn.functional.cross_entropy(
            model(batch["x"]), batch["y"], weight=held["w"]
        )

    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            if i == 2:
                held["w"] = torch.tensor([1.0, 2.0, 0.5])

        return stepping(world, change, 4)

    equal(loop, loss=loss)


def test_a_default_of_the_loss_is_changed() -> None:
    weights = {"l2": 0.0}

    def loss(world: World) -> Any:
        def value(model: Any, batch: Any, weights: dict[str, float] = weights) -> torch.Tensor:
            return cross_entropy(model, batch) + weights["l2"] * model.last.weight.square().sum()

        return value

    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            weights["l2"] = 0.0 if i < 2 else 0.5

        return stepping(world, change, 4)

    equal(loop, loss=loss)


def halved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half()


@pytest.mark.parametrize("how", ["autocast", "no_grad", "inference_mode", "saved_tensors_hooks"])
def test_what_is_switched_around_the_call_is_refused_and_nothing_is_lost(how: str) -> None:
    def around() -> Any:
        if how == "autocast":
            return torch.autocast("cpu", torch.bfloat16)
        if how == "saved_tensors_hooks":
            return torch.autograd.graph.saved_tensors_hooks(halved, torch.Tensor.float)
        return torch.no_grad() if how == "no_grad" else torch.inference_mode()

    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches()):
            if i == 3 and "compiled" in world.more:
                with around(), pytest.raises(bridge.Refused, match=r"\[around\]"):
                    world.step(batch)
            losses.append(world.step(batch))
        return losses

    equal(loop)


def test_torchs_own_hooks_on_saved_tensors_change_no_value() -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for batch in batches(4):
            with torch.autograd.graph.save_on_cpu():
                losses.append(world.step(batch))
        return losses

    equal(loop)


def test_a_state_that_is_assigned_is_refused_or_eagers() -> None:
    """``assign=True`` puts other parameters in place, of which the optimizer knows nothing: in eager they stay."""
    wanted, *_ = run(assigns_a_state, bridge=False)
    try:
        found, *_ = run(assigns_a_state, bridge=True)
    except bridge.Refused as refused:
        assert "optimizer" in str(refused)
    else:
        assert found == pytest.approx(wanted, rel=1e-4)


def test_two_threads_at_once_are_refused_and_one_after_the_other_is_not() -> None:
    import threading

    def loop(world: World) -> list[float]:
        step, given = world.more["compiled"], batches()
        inside, go = threading.Event(), threading.Event()
        inner, losses = step._step, [world.step(given[0])]

        def slow(batch: Any, placed: Any) -> Any:
            inside.set()
            go.wait(30)
            return inner(batch, placed)

        step._step = slow
        other = threading.Thread(target=lambda: losses.append(world.step(given[1])))
        other.start()
        assert inside.wait(30)
        with pytest.raises(bridge.Refused, match=r"\[threads\]"):
            world.step(given[2])
        go.set()
        other.join(30)
        step._step = inner
        return [*losses, world.step(given[2])]

    losses, *_ = run(loop, bridge=True)
    wanted, *_ = run(lambda world: [world.step(b) for b in batches()[:3]], bridge=True)
    assert losses == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("how", ["grad", "vmap", "jvp", "per_sample"])
def test_transforms_of_torch_read_the_weights_of_now(how: str) -> None:
    """They wrap what they are given in C, past every ``__torch_function__``."""

    def value(model: Any, parameters: Any, batch: Any) -> torch.Tensor:
        out = torch.func.functional_call(model, parameters, (batch["x"],))
        return nn.functional.cross_entropy(out, batch["y"])

    def asked(model: Any, batch: Any) -> torch.Tensor:
        parameters = dict(model.named_parameters())
        model.eval()
        try:
            if how == "grad":
                found = torch.func.grad(lambda p: value(model, p, batch))(parameters)
                return sum((g.square().sum() for g in found.values()), torch.zeros(()))
            if how == "jvp":
                ones = {n: torch.ones_like(p) for n, p in parameters.items()}
                return torch.func.jvp(lambda p: value(model, p, batch), (parameters,), (ones,))[1]
            if how == "vmap":
                return torch.vmap(lambda row: row.square().sum())(parameters["last.weight"]).sum()
            one = torch.func.grad(lambda p, x, y: value(model, p, {"x": x[None], "y": y[None]}))
            rows = torch.vmap(one, (None, 0, 0))(parameters, batch["x"], batch["y"])
            return rows["last.weight"].square().sum()
        finally:
            model.train()

    def loop(world: World) -> list[float]:
        losses = []
        for batch in batches(6):
            losses.append(world.step(batch))
            losses.append(float(asked(world.model, batch).detach()))
        return losses

    equal(loop)


def test_a_step_that_is_compiled_again_begins_with_what_was_trained() -> None:
    """The module is behind then; weights, statistics and moments are those of now."""

    def loop(world: World) -> list[float]:
        losses = [world.step(b) for b in batches()[:4]]
        if "compiled" in world.more:
            again = detente.compile(
                world.model, cross_entropy, world.optimizer, example_batch=batches()[0], seed=3, cache=False
            )
            world.step = lambda batch: float(again(batch))
        return losses + [world.step(b) for b in batches()[4:]]

    equal(loop)
