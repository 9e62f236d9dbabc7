"""What a batch is besides its shapes, and what a step gives back besides its loss: eager beside the bridge."""

from __future__ import annotations

import copy
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import detente
from detente import bridge
from detente.bridge.private import pytree
from tests.bridge.between.loops import saw

MADE = torch.Generator().manual_seed(5)
ROWS = [
    (torch.randn(12, 6, generator=MADE), torch.randint(0, 3, (12,), generator=MADE)) for _ in range(7)
]  # fmt: skip


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*changes between steps.*")
        yield


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def entropy(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def plainly(model: Any, loss: Any, optimizer: torch.optim.Optimizer) -> Callable[[Any], Any]:
    """A step of eager PyTorch that gives back what one of the bridge's does."""

    def step(batch: Any) -> Any:
        value = loss(model, batch)
        value, *aux = value if isinstance(value, tuple) else (value,)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return (value.detach(), *aux) if aux else value.detach()

    return step


def both(loop: Callable[[Any, Any, Any], Iterator[float]], build: Any, loss: Any, **how: Any) -> list[Any]:
    """``loop(step, model, compiled)`` in eager (where ``compiled`` is None) and through the bridge: the same numbers.
    Returned are the compiled steps."""
    found: list[list[float]] = []
    steps: list[Any] = []
    for on_bridge in (False, True):
        torch.manual_seed(0)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        if on_bridge:
            example = how.get("example", ROWS[0])
            step = detente.compile(
                model, loss, optimizer, example_batch=example, seed=3, cache=False, quiet=True
            )
            steps.append(step)
        else:
            step = plainly(model, loss, optimizer)
        found.append([float(value) for value in loop(step, model, step if on_bridge else None)])
    torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(found[0]), rtol=2e-4, atol=5e-5)
    saw("equal")
    return steps


# -- a batch ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asks", [lambda i: i % 3 == 2, lambda i: i < 4], ids=["every third step", "the first four steps"]
)
def test_a_tensor_of_the_batch_asks_for_its_gradient_in_some_steps(asks: Callable[[int], bool]) -> None:
    def penalised(model: Any, batch: Any) -> torch.Tensor:
        x, y = batch
        out = model(x)
        value = F.cross_entropy(out, y)
        if x.requires_grad:
            (gradient,) = torch.autograd.grad(out.logsumexp(1).sum(), x, create_graph=True)
            value = value + 2.0 * gradient.square().sum(1).mean()
        return value

    def loop(step: Any, model: Any, compiled: Any) -> Iterator[float]:
        for i, (x, y) in enumerate(ROWS):
            yield step((x.clone().requires_grad_(asks(i)), y))

    (step,) = both(loop, net, penalised, example=(ROWS[0][0].clone().requires_grad_(asks(0)), ROWS[0][1]))
    assert len(step.programs) == 2


@dataclasses.dataclass
class Normalised:
    x: torch.Tensor
    y: torch.Tensor

    def __post_init__(self) -> None:
        self.x = (self.x - 1.0) / 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Tight:
    x: torch.Tensor
    y: torch.Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", 2.0 * self.x)


@dataclasses.dataclass
class Weighted:
    x: torch.Tensor
    y: torch.Tensor
    weight: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.weight = torch.ones(len(self.x))
        self.scale = 1.0  # no field at all


def weighted(x: torch.Tensor, y: torch.Tensor) -> Weighted:
    made = Weighted(x, y)
    made.weight, made.scale = torch.linspace(0.0, 3.0, len(x)), 0.5
    return made


@pytest.mark.parametrize("build", [Normalised, Tight, weighted])
def test_a_dataclass_is_what_it_holds_and_not_what_its_class_makes_of_that(build: Any) -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        each = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        return (each * getattr(batch, "weight", 1.0)).mean() * getattr(batch, "scale", 1.0)

    def loop(step: Any, model: Any, compiled: Any) -> Iterator[float]:
        for x, y in ROWS[:4]:
            yield step(build(x, y))

    both(loop, net, loss, example=build(*ROWS[0]))


def test_a_container_that_makes_others_of_its_tensors_is_refused() -> None:
    """As a user taught it torch: the bridge cannot know that ``Taught(x)`` is not what holds ``x``."""

    class Taught:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x / 2.0

    pytree.register_pytree_node(
        Taught,
        lambda t: ([t.x], None),
        lambda v, _: Taught(*v),
        flatten_with_keys_fn=lambda t: ([(pytree.GetAttrKey("x"), t.x)], None),
    )
    model = net()
    with pytest.raises(bridge.Refused, match="built again from its tensors holds others"):
        detente.compile(
            model,
            lambda m, b: m(b.x).sum(),
            torch.optim.SGD(model.parameters(), lr=0.1),
            example_batch=Taught(ROWS[0][0]),
            cache=False,
        )


# -- what comes back beside the loss --------------------------------------------------------------------------------


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.calls = nn.Linear(6, 3), nn.BatchNorm1d(3), 0
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.norm(self.fc(x)) * self.logit_scale.exp()


GIVEN = {
    "itself": lambda m: m.logit_scale,
    "detached": lambda m: m.logit_scale.detach(),
    "a view": lambda m: m.fc.weight.detach().T[2:, 1],
    "data": lambda m: m.fc.bias.data,
    "a buffer": lambda m: m.norm.running_mean,
    "computed": lambda m: m.fc.weight.detach() * 1.0,
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("reads", ["at once", "later", "last"])
def test_a_tensor_of_the_module_beside_the_loss_is_the_live_one(given: str, reads: str) -> None:
    def loss(model: Any, batch: Any) -> Any:
        return entropy(model, batch), {"held": GIVEN[given](model), "more": [1.0]}

    def loop(step: Any, model: Any, compiled: Any) -> Iterator[float]:
        kept = []
        for batch in ROWS:
            value, aux = step(batch)
            kept.append(aux["held"])
            if reads == "at once":
                yield aux["held"].detach().sum()
            elif reads == "later" and len(kept) > 1:
                yield kept[-2].detach().sum()
            yield value
        for held in kept:
            yield held.detach().sum()

    both(loop, Clip, loss)


@pytest.mark.parametrize("given", ["itself", "a view"])
def test_what_is_written_through_it_is_written_to_the_module(given: str) -> None:
    def loss(model: Any, batch: Any) -> Any:
        return entropy(model, batch), GIVEN[given](model)

    def loop(step: Any, model: Any, compiled: Any) -> Iterator[float]:
        for batch in ROWS:
            value, held = step(batch)
            with torch.no_grad():
                held.clamp_(max=0.1)
            yield value

    both(loop, Clip, loss)


def test_a_view_in_another_dtype_is_refused() -> None:
    model = Clip()
    with pytest.raises(bridge.Refused, match=r"shows the memory of logit_scale as torch\.int32"):
        detente.compile(
            model,
            lambda m, b: (entropy(m, b), m.logit_scale.detach().view(torch.int32)),
            torch.optim.SGD(model.parameters(), lr=0.1),
            example_batch=ROWS[0],
            cache=False,
        )


def test_on_the_meta_device_it_is_the_tensor_that_gets_memory() -> None:
    with torch.device("meta"):
        model = net()
    step = detente.compile(
        model,
        lambda m, b: (entropy(m, b), (m[0].bias, m[2].weight.detach()[0])),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=ROWS[0],
        weights="init",
        cache=False,
    )
    for batch in ROWS[:4]:
        _, (bias, row) = step(batch)
        torch.testing.assert_close(bias.detach(), step.state_dict()["0.bias"])
        torch.testing.assert_close(row, step.state_dict()["2.weight"][0])


@pytest.mark.parametrize("given", ["a counter", "a draw", "a flag"])
def test_a_plain_value_beside_the_loss_is_that_of_its_step(given: str) -> None:
    plain = {
        "a counter": lambda m: m.calls,
        "a draw": lambda m: random.random(),
        "a flag": lambda m: m.calls % 2 == 0,
    }

    def loss(model: Any, batch: Any) -> Any:
        return entropy(model, batch), {"said": plain[given](model)}

    def loop(step: Any, model: Any, compiled: Any) -> Iterator[float]:
        random.seed(3)
        for batch in ROWS[:5]:
            value, aux = step(batch)
            yield from (value, float(aux["said"]))

    if given == "a draw":
        with pytest.raises(bridge.Refused, match="generator"):
            both(loop, Clip, loss)
    else:
        both(loop, Clip, loss)


# -- the state_dict -------------------------------------------------------------------------------------------------


class Versioned(nn.Module):
    """Its ``state_dict`` has what is no tensor, and what follows from a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)

    def get_extra_state(self) -> Any:
        return {"version": 2, "largest": self.fc.weight.detach().abs().max().item()}

    def set_extra_state(self, state: Any) -> None:
        pass


def renaming() -> nn.Module:
    model = net()

    def renamed(module: nn.Module, found: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in [*found]:
            found[f"backbone.{name}"] = found.pop(name)

    model.register_state_dict_post_hook(renamed)
    return model


def merging() -> nn.Module:
    """As adapters do: what is saved is a sum of two weights, in half precision."""
    model = net()

    def merged(module: nn.Module, found: dict[str, Any], prefix: str, metadata: Any) -> None:
        found["0.weight"] = (found["0.weight"] + found.pop("0.bias")[:, None]).half()

    model.register_state_dict_post_hook(merged)
    return model


def numbers(found: dict[str, Any]) -> list[float]:
    flat = pytree.tree_leaves(dict(sorted(found.items())))
    return [float(held.double().norm()) if isinstance(held, torch.Tensor) else float(held) for held in flat]


@pytest.mark.parametrize("build", [Versioned, renaming, merging, net])
def test_a_state_dict_is_what_the_module_says(build: Any) -> None:
    names = []

    def loop(step: Any, model: Any, compiled: Any) -> Iterator[float]:
        for i, batch in enumerate(ROWS):
            yield step(batch)
            if i in (0, 4):
                found = (compiled or model).state_dict()
                names.append([*found])
                assert not any(isinstance(held, nn.Parameter) for held in found.values())
                kept = {n: t.clone() for n, t in found.items() if isinstance(t, torch.Tensor)}
                yield from numbers(found)
                if compiled:
                    yield step(batch)
                    assert all(torch.equal(found[n], t) for n, t in kept.items()), "a copy"
                else:
                    yield step(batch)

    both(loop, build, entropy)
    assert names[:2] == names[2:]


@pytest.mark.parametrize("build", [Versioned, renaming, merging])
def test_averages_are_what_the_module_says_of_them(build: Any) -> None:
    torch.manual_seed(0)
    model = build()
    mirror = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    step = detente.compile(model, entropy, optimizer, example_batch=ROWS[0], ema=0.5, cache=False, seed=3)
    for batch in ROWS[:3]:
        step(batch)
    means = {
        n: torch.from_numpy(np.array(held))
        for n, held in step._rule.averages(step._state.by_torch_names()[1]).items()
    }
    trained = numbers(step.state_dict())
    for name, tensor in mirror.named_parameters():
        tensor.data.copy_(means[name])
    found = step.averages()
    assert numbers(found) == pytest.approx(numbers(mirror.state_dict()), rel=1e-6)
    assert numbers(found) != trained
    assert numbers(step.state_dict()) == trained == numbers(model.state_dict())
    before = len(step.programs)
    step(ROWS[3])
    assert len(step.programs) == before
