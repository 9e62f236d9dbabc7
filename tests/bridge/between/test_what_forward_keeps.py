"""Tensors that forward leaves in Python for the loop are those of the step behind every step, as in eager."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import detente
from detente import bridge
from detente.bridge.capture import capture, kept
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal, run

LAST: torch.Tensor | None = None


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*requires_grad=True to a scalar.*")
        warnings.filterwarnings("error", message=".*(compiled again|forward leaves).*")
        yield


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.table: dict[Any, Any] = {}
        self.space, self.rows = SimpleNamespace(h=None), [None, 1]
        self.loads, self.info, self.number = torch.zeros(8), None, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        self.keep(h)
        return self.last(h)

    def keep(self, h: torch.Tensor) -> None:
        pass


class AnAttribute(Two):
    def keep(self, h: torch.Tensor) -> None:
        self.loads = h.detach().sum(0)

    def seen(self) -> Any:
        return self.loads.sum()


class AFreshAttribute(Two):
    def keep(self, h: torch.Tensor) -> None:
        self.fresh = h.max()

    def seen(self) -> Any:
        return self.fresh


class ADictionary(Two):
    def keep(self, h: torch.Tensor) -> None:
        self.table["h"] = h.detach()

    def seen(self) -> Any:
        return self.table.pop("h").std()


class ATuple(Two):
    def keep(self, h: torch.Tensor) -> None:
        self.info = {"pair": (h.mean(), "mean"), "of": 8}

    def seen(self) -> Any:
        assert self.info is not None and self.info["of"] == 8 and self.info["pair"][1] == "mean"
        return self.info["pair"][0]


class AnObject(Two):
    def keep(self, h: torch.Tensor) -> None:
        self.space.h = h

    def seen(self) -> Any:
        return self.space.h[0, 1]


class AnItem(Two):
    def keep(self, h: torch.Tensor) -> None:
        self.rows[0] = h.argmax(1)

    def seen(self) -> Any:
        return self.rows[0].sum()


class AGlobal(Two):
    def keep(self, h: torch.Tensor) -> None:
        global LAST  # noqa: PLW0603  (what is tried)
        LAST = h.norm()

    def seen(self) -> Any:
        assert LAST is not None
        return LAST


class ANumber(Two):
    def keep(self, h: torch.Tensor) -> None:
        self.number = h.mean().item() * 2

    def seen(self) -> Any:
        assert type(self.number) is float
        return self.number


class ACount(Two):
    def keep(self, h: torch.Tensor) -> None:
        self.table["positive"] = (h > 0).sum().item()

    def seen(self) -> Any:
        assert type(self.table["positive"]) is int
        return self.table["positive"]


class AViewOfAWeight(Two):
    """The update moves it, in eager too."""

    def keep(self, h: torch.Tensor) -> None:
        self.loads = self.first.weight.detach()[0]

    def seen(self) -> Any:
        return self.loads.sum()


PLACES = [
    AnAttribute, AFreshAttribute, ADictionary, ATuple, AnObject, AnItem, AGlobal, ANumber, ACount, AViewOfAWeight,
]  # fmt: skip


@pytest.mark.parametrize("build", PLACES)
def test_it_is_that_of_the_step(build: Any) -> None:
    def looks(world: World) -> list[float]:
        found = []
        for batch in batches(4):
            found += [world.step(batch), float(world.model.seen())]
        return found

    assert len(equal(looks, build=build).more["compiled"].programs) == 1


def test_a_hooks_variable_moves_a_weight() -> None:
    def revives(world: World) -> list[float]:
        acts: dict[str, torch.Tensor] = {}
        last = None

        def keep(module: Any, args: Any, made: torch.Tensor) -> None:
            nonlocal last
            acts["hidden"] = last = made.detach()

        world.model.norm.register_forward_hook(keep)
        found = []
        for batch in batches(5):
            found.append(world.step(batch))
            assert last is not None
            dead = acts["hidden"].amax(0) < 1.7
            with torch.no_grad():
                world.model.last.weight[:, dead] *= 0.5
                world.model.last.bias.add_(0.1 * last.std(0)[:3])
        return found

    equal(revives)


def test_pruning_in_rounds_ranks_what_the_last_forward_masked() -> None:
    def prunes(world: World) -> list[float]:
        found = []
        for i, batch in enumerate(batches(7)):
            if i in (2, 5):
                for part in (world.model.first, world.model.last):
                    prune.l1_unstructured(part, "weight", amount=0.3)
            found.append(world.step(batch))
        return [*found, *world.model.last.weight_mask.flatten().tolist()]

    equal(prunes, optimizer=lambda p: torch.optim.SGD(p, lr=0.5))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.size = nn.Linear(6, 6), nn.Linear(6, 6), torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.two(torch.relu(self.one(x)))
        self.size = y.detach().abs().mean()
        return x + 0.1 * y


@pytest.mark.parametrize("form", ["unrolled", "rolled", "rolled+full", "inside"])
def test_in_every_form(form: str) -> None:
    def looks(world: World) -> list[float]:
        found = []
        for batch in batches(3):
            found.append(world.step(batch))
            found += [float(layer.size) for layer in world.model[:8]]
        return found

    equal(looks, build=lambda: nn.Sequential(*(Layer() for _ in range(8)), nn.Linear(6, 3)), form=form)


def test_of_micro_batches_it_is_the_last_ones() -> None:
    torch.manual_seed(0)
    model = AnAttribute()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(model, cross_entropy, sgd, example_batch=batches(1)[0], accumulate=3, cache=False)
    for batch in batches(3):
        before = copy.deepcopy(model.state_dict())
        step(batch)
        other = AnAttribute()
        other.load_state_dict(before)
        other(batch["x"][8:])
        torch.testing.assert_close(model.loads.clone(), other.loads)


def test_validation_in_between_compiles_nothing() -> None:
    class Several(Two):
        def keep(self, h: torch.Tensor) -> None:
            self.loads, self.table["h"], self.info = (
                h.detach(),
                h.detach(),
                {"mean": h.detach().mean(), "of": 8},
            )

    def validates(world: World) -> list[float]:
        found = []
        for i, batch in enumerate(batches(4)):
            found += [world.step(batch), float(world.model.loads.sum())]
            world.model.eval()
            with torch.no_grad():
                world.model(batches(1, rows=3 + i)[0]["x"])
            world.model.train()
            found.append(float(world.model.table["h"].sum()))
        return found

    assert len(equal(validates, build=Several).more["compiled"].programs) == 1


def test_another_batch_is_another_program_with_the_same_places() -> None:
    def two_sizes(world: World) -> list[float]:
        found = []
        for i, batch in enumerate(batches(6)):
            part = {key: tensor[: 12 - 4 * (i % 2)] for key, tensor in batch.items()}
            found += [world.step(part), float(world.model.loads.sum())]
        return found

    assert len(equal(two_sizes, build=AnAttribute).more["compiled"].programs) == 2


def test_what_is_kept_can_be_copied_and_saved() -> None:
    torch.manual_seed(0)
    model = ATuple()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(model, cross_entropy, sgd, example_batch=batches(1)[0], cache=False)
    step(batches(1)[0])
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(other.info["pair"][0]) is torch.Tensor
        assert float(other.info["pair"][0]) == float(model.seen())


def test_it_comes_from_the_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = AnAttribute()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        step = detente.compile(model, cross_entropy, sgd, example_batch=batches(1)[0], certificate="none")
        step(batches(1)[0])
        found.append((step.programs[0].cached, step.programs[0].uncached, model.loads.tolist()))
    assert [cached for cached, *_ in found] == [False, True]
    assert found[0][1:] == found[1][1:] and any(found[0][2])


def test_nothing_is_kept_where_nothing_is_left() -> None:
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(
        model, cross_entropy, sgd, example_batch=batches(1)[0], certificate="none", cache=False
    )
    assert {output.kind for output in step.programs[0].captured.graph.outputs} == {"loss", "buffer"}


def test_what_is_too_much_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "ROOM", 0)
    model = ADictionary()
    model.keep = lambda h: model.table.update(h=h.detach().repeat(100, 1), mean=h.detach().mean())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(
        UserWarning, match=r"forward leaves a tensor in model.table\['h'\], and a compiled step does not"
    ):
        step = detente.compile(model, cross_entropy, sgd, example_batch=batches(1)[0], cache=False)
    step(batches(1)[0])
    assert "h" not in model.table and float(model.table["mean"]) != 0
    assert kept.ROOM >= 1 << 20


class ReadInEval(Two):
    """What training left is what evaluation computes with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        if self.training:
            self.loads = h.detach().mean(0)
        else:
            h = h - self.loads
        return self.last(h)


@pytest.mark.parametrize("begins", [True, False], ids=["training", "evaluation"])
def test_what_another_program_reads_is_refused(begins: bool) -> None:
    def takes_turns(world: World) -> list[float]:
        found = []
        for i, batch in enumerate(batches(5)):
            world.model.train((i % 2 == 0) is begins)
            found.append(world.step(batch))
        return found

    with pytest.raises(bridge.Refused) as refused:
        run(takes_turns, bridge=True, build=ReadInEval)
    assert [reason.code for reason in refused.value.reasons] == ["held-tensor"]
    assert "loads is filled by one program of this step, and read by another" in str(refused.value)


class Asks(Two):
    """What stands there decides, unless a step has put it there."""

    def keep(self, h: torch.Tensor) -> None:
        if self.info is not None and self.info.shape[0] == 2:
            raise ValueError("two")
        self.info = h.detach().mean(0)


def test_what_somebody_else_puts_there_is_looked_at() -> None:
    def sets(world: World) -> list[float]:
        found = []
        for i, batch in enumerate(batches(4)):
            if i == 2:
                world.model.info = torch.zeros(2)
            try:
                found.append(world.step(batch))
            except (ValueError, bridge.Refused) as error:
                assert "two" in str(error)
                world.model.info = None
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(sets, bridge=True, build=Asks)[0] == pytest.approx(
            run(sets, bridge=False, build=Asks)[0], rel=1e-4
        )


def steps(world: World) -> list[float]:
    return [world.step(batch) for batch in batches(3)]


def keeps_inside_of_vmap() -> Callable[..., Any]:
    kept: dict[str, torch.Tensor] = {}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        def one(x: torch.Tensor) -> torch.Tensor:
            kept["x"] = x.sin()
            return (x * x).sum()

        return cross_entropy(model, batch) + torch.vmap(one)(batch["x"]).mean()

    return loss


def test_a_tensor_of_one_turn_of_vmap_is_told() -> None:
    with pytest.warns(UserWarning, match="forward leaves a tensor in"):
        run(steps, bridge=True, loss=lambda world: keeps_inside_of_vmap())
