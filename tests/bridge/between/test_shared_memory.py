"""Weights, moments and teachers in memory that other processes have, too: they read every step, and what they write
counts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import detente
from detente.bridge.live.shared import Meeting, shared
from tests.bridge.between.loops import World, batches, cross_entropy, equal, stepping


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def in_shared_memory() -> nn.Module:
    return plain().share_memory()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2)


def elsewhere(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, mapped a second time: what another process has of it."""
    number, size = tensor.untyped_storage()._share_fd_cpu_()
    memory = torch.UntypedStorage._new_shared_fd_cpu(number, size)
    return torch.empty(0, dtype=tensor.dtype).set_(memory).flatten()[: tensor.numel()].view(tensor.shape)


def norms(others: list[torch.Tensor]) -> list[float]:
    return [float(other.norm()) for other in others]


@pytest.fixture(autouse=True)
def quietly() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*other processes have")
        yield


def test_another_process_reads_every_step() -> None:
    def loop(world: World) -> list[float]:
        others = [elsewhere(p) for p in world.model.parameters()]
        found = []
        for batch in batches(5):
            found += [world.step(batch), *norms(others)]
        return found

    equal(loop, build=in_shared_memory, optimizer=sgd)


def test_what_another_process_writes_is_what_the_next_step_starts_from() -> None:
    """From the first on: it writes between compile and that."""

    def loop(world: World) -> list[float]:
        others = [elsewhere(p) for p in world.model.parameters()]

        def change(i: int) -> float:
            for other in others:
                other.mul_(0.9)
            return float(others[0].norm())

        return stepping(world, change, 5)

    equal(loop, build=in_shared_memory, optimizer=sgd)


def test_what_another_process_writes_while_a_step_runs_stays() -> None:
    """Hogwild: eager's update is added to what stands there then."""

    def loop(world: World) -> list[float]:
        other, found = elsewhere(world.model[0].weight), []
        compiled = world.more.get("compiled")
        optimizer = world.optimizer
        if compiled is not None:
            written = compiled._show_unasked

            def meanwhile() -> None:
                other.add_(0.01)
                written()

            compiled._show_unasked = meanwhile
            for batch in batches(4):
                found += [world.step(batch), float(other.norm())]
            del compiled._show_unasked
            return found
        for batch in batches(4):
            loss = cross_entropy(world.model, batch)
            loss.backward()
            other.add_(0.01)
            optimizer.step()
            optimizer.zero_grad()
            found += [float(loss.detach()), float(other.norm())]
        return found

    equal(loop, build=in_shared_memory, optimizer=sgd)


def test_where_nobody_writes_it_is_the_same_to_the_bit() -> None:
    live, meeting = torch.rand(40), Meeting()
    meeting.of([live])
    meeting.begun(live)
    value = torch.rand(40)
    assert meeting.merged(live, value) is value
    live[3] += 1
    merged = meeting.merged(live, value)
    assert torch.equal(merged[:3], value[:3]) and torch.equal(merged[4:], value[4:])
    assert float(merged[3] - value[3]) == pytest.approx(1.0)


def test_memory_that_is_shared_behind_compile() -> None:
    def loop(world: World) -> list[float]:
        others: list[torch.Tensor] = []

        def change(i: int) -> float | None:
            if i == 2:
                world.model.share_memory()
                others.extend(elsewhere(p) for p in world.model.parameters())
            for other in others:
                other.mul_(0.9)
            return float(others[0].norm()) if others else None

        return stepping(world, change, 6)

    with pytest.warns(UserWarning, match="other processes have the memory of its tensors"):
        equal(loop, build=plain, optimizer=sgd)


def sent(world: World) -> None:
    """As multiprocessing does where a module is an argument of a process."""
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.dumps(world.model)


@pytest.mark.skipif(os.name == "nt", reason="files are handed over by number")
def test_a_module_that_is_sent_to_a_process_behind_compile() -> None:
    def loop(world: World) -> list[float]:
        others: list[torch.Tensor] = []

        def change(i: int) -> float | None:
            if i == 2:
                sent(world)
                others.extend(elsewhere(p) for p in world.model.parameters())
                assert len(shared([p.detach() for p in world.model.parameters()])) == 4
            return float(others[0].norm()) if others else None

        return stepping(world, change, 6)

    equal(loop, build=plain, optimizer=sgd)


def test_a_state_that_is_loaded_is_seen_at_once(tmp_path: Path) -> None:
    """And is not added to what another process wrote meanwhile."""
    torch.manual_seed(0)
    model = in_shared_memory()
    step = detente.compile(
        model, cross_entropy, sgd(model.parameters()), example_batch=batches()[0], cache=False, quiet=True
    )
    other = elsewhere(model[0].weight)
    given = batches(4)
    step(given[0])
    step.save(tmp_path / "s.safetensors")
    saved = other.clone()
    step(given[1])
    assert not torch.equal(other, saved)
    other.add_(1.0)
    step.load(tmp_path / "s.safetensors")
    assert torch.equal(other, saved)
    other.add_(1.0)
    step.restart({name: value for name, value in step.state_dict().items() if name != "0.weight"})
    assert torch.equal(other, saved + 1.0)


def test_moments_that_are_shared() -> None:
    def adam(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.Adam(parameters, lr=0.05)
        for p in made.param_groups[0]["params"]:
            made.state[p] = {
                "step": torch.zeros(()).share_memory_(),
                "exp_avg": torch.zeros_like(p).share_memory_(),
                "exp_avg_sq": torch.zeros_like(p).share_memory_(),
            }
        return made

    def loop(world: World) -> list[float]:
        held = [world.optimizer.state[p]["exp_avg"] for p in world.model.parameters()]
        others = [elsewhere(tensor) for tensor in held]
        del held

        def change(i: int) -> float:
            for other in others:
                other.mul_(0.5)
            return float(others[0].norm())

        return stepping(world, change, 5)

    equal(loop, build=plain, optimizer=adam)


def test_a_teacher_of_another_process() -> None:
    teacher = torch.ones(3).share_memory_()
    other = elsewhere(teacher)

    def loss(world: World) -> Callable[..., torch.Tensor]:
        return lambda model, batch: F.cross_entropy(model(batch["x"]) * teacher, batch["y"])

    def loop(world: World) -> list[float]:
        def change(i: int) -> None:
            other.fill_(1 + i / 4)

        return stepping(world, change, 5)

    equal(loop, build=plain, optimizer=sgd, loss=loss)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_what_is_mapped_for_this_process_alone_is_not_shared(tmp_path: Path) -> None:
    states = plain().state_dict()
    save_file(states, tmp_path / "w.safetensors")
    torch.save(states, tmp_path / "w.pt")
    mapped = torch.load(tmp_path / "w.pt", mmap=True)
    storage = torch.UntypedStorage.from_file(str(tmp_path / "w.pt"), False, 64)
    alone = torch.empty(0, dtype=torch.uint8).set_(storage)
    own = [
        *load_file(tmp_path / "w.safetensors").values(),
        *mapped.values(),
        alone,
        torch.ones(3),
        torch.ones(0),
    ]
    assert alone.is_shared() and shared(own) == []


def test_what_other_processes_have_is_found_in_every_form(tmp_path: Path) -> None:
    block = shared_memory.SharedMemory(create=True, size=64)
    try:
        bytes_of = torch.frombuffer(block.buf, dtype=torch.float32, count=16)
        file = torch.from_file(str(tmp_path / "x"), shared=True, size=16)
        sent_before = torch.rand(4, 4).share_memory_()
        given = [bytes_of[3:], file, sent_before[1], torch.rand(3)]
        found = shared(given)
        assert [any(one is t for t in found) for one in given] == [True, True, True, False]
        del bytes_of, given, found  # or the block cannot be closed
    finally:
        block.close()
        block.unlink()
