"""Modes of the user's around a step, and what is on around whoever reads a weight."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import detente
from detente import bridge
from detente.bridge.private import users_modes
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal, run


class Coarse(TorchFunctionMode):
    """Activations on a grid, with a straight gradient."""

    def __init__(self, by: float = 2.0) -> None:
        self.by = by

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is F.linear:
            out = out + ((out * self.by).round() / self.by - out).detach()
        return out


class Narrow(TorchDispatchMode):
    """Products as a chip with fewer bits has them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.bfloat16().float() if func is torch.ops.aten.addmm.default else out


class Counts(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Coarse, Narrow, lambda: FlopCounterMode(display=False)])
def test_a_mode_that_begins_later_is_refused_and_nothing_is_lost(mode: Callable[[], Any]) -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches()):
            if i in (1, 4) and "compiled" in world.more:
                with mode(), pytest.raises(bridge.Refused, match=r"\[around\] .*(Coarse|Narrow|Flop)"):
                    world.step(batch)
                assert not users_modes()
            losses.append(world.step(batch))
        return losses

    equal(loop)


def test_what_a_mode_around_compile_does_is_part_of_the_program() -> None:
    """Opened for each step anew, and not around who reads; the certificate is made in it."""

    def stepping(world: World, step: Callable[[Any], Any]) -> list[float]:
        found = []
        for i, batch in enumerate(batches()):
            with Coarse():
                found.append(float(step(batch)))
            if i % 3 == 0:
                found.append(float(world.model.last.weight.detach().norm()))
        return found

    wanted, state, _ = run(lambda world: stepping(world, world.step), bridge=False)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Coarse():
        step = detente.compile(
            model, cross_entropy, optimizer, example_batch=batches()[0], seed=3, certificate="full"
        )
    assert stepping(World(model, optimizer, step), step) == pytest.approx(wanted, rel=2e-4)
    assert step.certificate is not None and step.certificate.ok
    assert "mode" in step.programs[0].uncached  # its code is in no file's name
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=2e-4, atol=5e-5)
    with pytest.raises(bridge.Refused, match=r"Coarse was on around detente\.compile, and is not on"):
        step(batches()[0])
    with Coarse(4.0), pytest.raises(bridge.Refused, match=r"by of .*Coarse.* is 4\.0 now, and was 2\.0"):
        step(batches()[0])
    with Coarse(), Counts(), pytest.raises(bridge.Refused, match=r"Coarse, .*Counts is on around"):
        step(batches()[0])


def test_a_dispatch_mode_around_compile_is_refused() -> None:
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with Narrow(), pytest.raises(bridge.Refused, match=r"Narrow, a mode below torch's operators"):
        detente.compile(model, cross_entropy, sgd, example_batch=batches()[0], cache=False)


def test_inside_of_the_loss_one_is_captured_and_the_other_refused() -> None:
    def inside(mode: Callable[[], Any]) -> Callable[[World], Any]:
        def loss(model: Any, batch: Any) -> torch.Tensor:
            with mode():
                return cross_entropy(model, batch)

        return lambda world: loss

    def loop(world: World) -> list[float]:
        return [world.step(batch) for batch in batches(4)]

    equal(loop, loss=inside(Coarse))
    with pytest.raises(
        bridge.Refused, match=r"\[transform\] .*Narrow, a mode below torch's operators"
    ) as told:
        run(loop, bridge=True, loss=inside(Narrow))
    assert told.value.reasons[0].where.file == __file__.replace("test_modes_around", "loops")


TORCHS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a device": lambda: torch.device("cpu"),
    "a mode that does nothing": BaseTorchFunctionMode,
}


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_own_modes_are_let_through(name: str) -> None:
    def loop(world: World) -> list[float]:
        losses = []
        for i, batch in enumerate(batches(5)):
            with TORCHS[name]() if i % 2 else nullcontext():
                losses.append(world.step(batch))
        return losses

    world = equal(loop)
    assert len(world.more["compiled"].programs) == 1


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor * 2 if tensor.is_floating_point() else tensor, lambda tensor: tensor
    ),
    "a function mode": Coarse,
    "a dispatch mode": Narrow,
    "a device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_certificate_knows_nothing_of_what_is_on_around_who_reads(name: str) -> None:
    """A first step, and a validation behind it: the certificate is made where its first weight is read."""
    made = []
    for around in (nullcontext, AROUND[name]):
        torch.manual_seed(0)
        model = Net()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        step = detente.compile(
            model, cross_entropy, sgd, example_batch=batches()[0], seed=3, cache=False, quiet=True
        )
        step(batches()[0])
        with around():
            read = model.last.weight.detach()
        assert step.certificate is not None
        rows = [(row.kind, row.name, row.error, row.reference_error) for row in step.certificate.rows]
        made.append((rows, read.clone(), float(step(batches()[1]))))
    assert made[0][0] == made[1][0]
    assert torch.equal(made[0][1], made[1][1]) and made[0][2] == made[1][2]


def test_moments_that_are_read_in_inference_mode_are_written_by_eagers_next_step() -> None:
    def trained(bridged: bool) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x = torch.linspace(-1, 1, 30).reshape(5, 6)

        def loss(m: Any, batch: Any) -> torch.Tensor:
            return m(batch).square().mean()

        def eager(batch: Any) -> torch.Tensor:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            return value.detach()

        options = {"example_batch": x, "quiet": True, "cache": False}
        step = detente.compile(model, loss, optimizer, **options) if bridged else eager
        found = []
        for i in range(5):
            found.append(float(step(x)))
            if i % 2 == 0:
                with torch.inference_mode():
                    saved = optimizer.state_dict()["state"]
                    found += [float(entry["exp_avg"].norm()) for entry in saved.values()]
                    found.append(float(model(x).norm()))
        with torch.inference_mode():
            del step  # it writes back here what it trained
        return found + [float(eager(x)) for _ in range(3)]

    assert trained(True) == pytest.approx(trained(False), rel=1e-5)
