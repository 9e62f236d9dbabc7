"""The live optimizer's state, read and written directly between steps."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import detente
from detente import bridge
from tests.bridge.between.loops import Net, World, batches, cross_entropy, eager, equal


def change_at(number: int, change: Any) -> Any:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches()):
            if i == number:
                losses += change(world) or []
            losses.append(world.step(batch))
        return losses

    return loop


def zeroes(world: World) -> None:
    for state in world.optimizer.state.values():
        state["exp_avg"].zero_()


def puts_another_tensor(world: World) -> None:
    for p in world.model.parameters():
        world.optimizer.state[p]["exp_avg_sq"] = torch.full_like(p, 1e-3)


def writes_data(world: World) -> None:
    for state in world.optimizer.state.values():
        state["exp_avg"].data.mul_(0.5)


def writes_by_numpy(world: World) -> None:
    world.optimizer.state[world.model.last.bias]["exp_avg"].numpy()[:] = 0


def clears(world: World) -> None:
    world.optimizer.state.clear()


def forgets_one(world: World) -> None:
    del world.optimizer.state[world.model.last.bias]


def replaces_the_table(world: World) -> None:
    from collections import defaultdict

    world.optimizer.state = defaultdict(dict)


def reads(world: World) -> list[float]:
    return [float(s["exp_avg"].norm()) for s in world.optimizer.state.values()]


def asks_who_has_one(world: World) -> list[float]:
    return [float(p in world.optimizer.state) for p in world.model.parameters()]


def copies(world: World) -> list[float]:
    held = copy.deepcopy(world.optimizer.state)
    assert type(held).__name__ == "defaultdict"
    return [float(s["exp_avg"].sum()) for s in held.values()]


CHANGES = (
    zeroes, puts_another_tensor, writes_data, writes_by_numpy, clears, forgets_one, replaces_the_table, reads,
    asks_who_has_one, copies,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("number", [1, 4])
def test_what_is_done_to_it_is_done_to_the_step(change: Any, number: int) -> None:
    equal(change_at(number, change))


def test_a_tensor_that_was_handed_out_earlier_is_still_the_optimizers() -> None:
    def loop(world: World) -> list[float]:
        losses, held = [], None
        for i, batch in enumerate(batches()):
            if i == 2:
                held = world.optimizer.state[world.model.last.bias]["exp_avg"]
            if i in (4, 6):
                assert held is not None
                losses.append(float(held.norm()))
                held.mul_(0.5)
            losses.append(world.step(batch))
        return losses

    equal(loop)


def test_a_write_through_an_alias_of_a_moment_is_one_to_the_moment() -> None:
    def loop(world: World) -> list[float]:
        losses, alias = [], None
        for i, batch in enumerate(batches()):
            if i == 2:
                alias = world.optimizer.state[world.model.last.bias]["exp_avg"].detach()
            if i == 4:
                assert alias is not None
                alias.zero_()
            losses.append(world.step(batch))
        return losses

    equal(loop)


# What a loop holds of a moment that it read once, and how it gets at the tensor later.
HELD: dict[str, tuple[Any, Any]] = {
    "the tensor": (lambda state, p: state[p]["exp_avg"], lambda h: h),
    "its dictionary": (lambda state, p: state[p], lambda h: h["exp_avg"]),
    "a view of its dictionary": (lambda state, p: state[p].values(), lambda h: next(v for v in h if v.dim())),
    "the table": (lambda state, p: (state, p, dict(state[p]).keys()), lambda h: h[0][h[1]]["exp_avg"]),
    "a row": (lambda state, p: state[p]["exp_avg"][:1], lambda h: h),
    "what numpy sees": (lambda state, p: state[p]["exp_avg"].numpy(), torch.from_numpy),
    "memory that C bound": (
        lambda state, p: torch.empty(3).set_(state[p]["exp_avg"]),
        lambda h: h,
    ),
    "nothing": (lambda state, p: (state[p]["exp_avg"].norm(), state, p), lambda h: h[1][h[2]]["exp_avg"]),
}


@pytest.mark.parametrize("what", HELD)
def test_a_moment_that_was_read_is_watched_for_as_long_as_somebody_holds_it(what: str) -> None:
    take, get = HELD[what]

    def loop(world: World) -> list[float]:
        losses, held = [], None
        for i, batch in enumerate(batches()):
            if i == 2:
                held = take(world.optimizer.state, world.model.last.bias)
            if i in (4, 6):
                losses.append(float(get(held).norm()))
                get(held).zero_()
            losses.append(world.step(batch))
        return losses

    equal(loop)


def test_a_write_that_cannot_be_seen_is_refused_and_the_training_is_kept() -> None:
    """Through an alias from before compile."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first, *rest = batches()
    eager(model, cross_entropy, optimizer)(first)
    alias = optimizer.state[model.last.bias]["exp_avg"].detach()
    step = detente.compile(model, cross_entropy, optimizer, example_batch=first, seed=3, cache=False)
    for batch in rest[:3]:
        float(step(batch))
    dict(optimizer.state[model.last.bias])
    float(step(rest[3]))
    trained = step.state_dict()
    alias.zero_()
    with pytest.raises(bridge.Refused, match="optimizer's state was written"):
        step(rest[4])
    step.sync_to_torch()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name
    assert float(step(rest[4])) > 0


def test_an_optimizer_is_pickled_with_what_was_trained() -> None:
    def loop(world: World) -> list[float]:
        losses = [world.step(batch) for batch in batches()]
        held = pickle.loads(pickle.dumps(world.optimizer)).state
        return [*losses, *sorted(float(s["exp_avg"].norm()) for s in held.values())]

    equal(loop)
