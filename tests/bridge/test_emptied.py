"""The live module's memory is given up while a step is ahead of it, and nobody ever reads zeros for weights."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import math
import mmap
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.dlpack import from_dlpack

from detente import bridge
from detente.bridge.certify import certify
from detente.bridge.live import guard
from detente.bridge.private import plainly
from detente.bridge.state import emptied

WIDE = 400  # weights of 156 pages


@pytest.fixture(autouse=True)
def _of_a_small_model(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "of_a_large_model" not in request.node.name:
        monkeypatch.setattr(emptied, "LITTLE", 0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - 1).square().mean()


def batch(rows: int = 2) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * WIDE).view(rows, WIDE)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def compiled(model: nn.Module, **options: Any) -> bridge.Step:
    options = {"certificate": "none", "cache": False, "quiet": True, **options}
    return bridge.compile(model, loss, sgd(model), example_batch=batch(), **options)


def ahead(step: bridge.Step, steps: int = 3) -> bridge.Step:
    """What is written of a step in a test is of one that has run so many times, none of which anybody looked at."""
    for _ in range(steps):
        step(batch())
    return step


def eager(steps: int, model: nn.Module | None = None) -> nn.Module:
    model = Net() if model is None else model
    optimizer = sgd(model)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, batch()).backward()
        optimizer.step()
    return model


def memory(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """What lies there, whoever is asked first."""
    return plainly(lambda: np.from_dlpack(tensor.detach()).copy())


def given_up(tensor: torch.Tensor) -> bool:
    return not memory(tensor)[3:-3].any()  # but for what lies in pages at the edges


def close(found: nn.Module, expected: nn.Module) -> None:
    for (name, ours), theirs in zip(found.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().clone(), theirs.detach(), msg=lambda m, n=name: f"{n}: {m}")


def resident(tensor: torch.Tensor) -> int:
    """Pages of its memory that the system holds, as the system says."""
    system, size = ctypes.CDLL(None), mmap.PAGESIZE
    begin = -(-plainly(tensor.data_ptr) // size) * size
    pages = tensor.nbytes // size - 1
    told = (ctypes.c_ubyte * pages)()
    assert system.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(pages * size), told) == 0
    return sum(page & 1 for page in told)


def test_the_system_gets_it_back_and_who_reads_gets_what_was_trained() -> None:
    model = Net()
    step = ahead(compiled(model), 1)
    weights = [model.first.weight, model.last.weight]
    versions = [weight._version for weight in weights]
    places = [plainly(weight.data_ptr) for weight in weights]
    assert all(resident(weight) > 150 for weight in weights), "the case"
    ahead(step, 1)
    assert [resident(weight) for weight in weights] == [0, 0]
    assert [weight._version for weight in weights] == versions
    assert [plainly(weight.data_ptr) for weight in weights] == places
    close(model, eager(2))
    ahead(step, 1)
    close(model, eager(3))


def test_of_a_large_model_and_of_no_small_one() -> None:
    small = Net()
    ahead(compiled(small), 20)
    assert resident(small.last.weight) > 150

    class Large(Net):
        def __init__(self) -> None:
            super().__init__()
            self.beside = nn.Linear(WIDE, 12000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).mean() + self.beside(x).mean()

    large = Large()
    ahead(compiled(large))
    assert resident(large.beside.weight) == 0


READS: dict[str, Callable[[Net], torch.Tensor]] = {
    "a value": lambda m: m.last.weight[3].clone(),
    "data": lambda m: m.last.weight.data[3],
    "detach": lambda m: m.last.weight.detach()[3],
    "numpy": lambda m: torch.from_numpy(m.last.weight.detach().numpy()[3]),
    "an exchange": lambda m: from_dlpack(m.last.weight.detach())[3],
    "a state_dict": lambda m: m.state_dict()["last.weight"][3],
    "a copy": lambda m: copy.deepcopy(m).last.weight[3],
    "a file": lambda m: saved(m.state_dict())["last.weight"][3],
    "a parameter in a file": lambda m: saved(m.last.weight)[3],
    "a call": lambda m: m.last(torch.eye(WIDE)).t()[3],
    "a functional call": lambda m: torch.func.functional_call(
        m.last, dict(m.last.named_parameters()), torch.eye(WIDE)
    ).t()[3],
    "a gradient": lambda m: torch.func.grad(lambda w: (w * w / 2).sum())(m.last.weight)[3],
    "a vector": lambda m: nn.utils.parameters_to_vector(m.last.parameters()).view(WIDE, WIDE)[3],
    "its storage": lambda m: torch.empty(0).set_(m.last.weight.untyped_storage(), 3 * WIDE, (WIDE,)).clone(),
    "another dtype": lambda m: m.last.weight.double()[3].float(),
    "one of many": lambda m: torch._foreach_mul([m.last.weight], 1.0)[0][3],
    "an iteration": lambda m: list(m.last.weight)[3],
}


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_every_way_to_read_finds_what_was_trained(read: Callable[[Net], torch.Tensor]) -> None:
    model = Net()
    step = ahead(compiled(model))
    assert given_up(model.last.weight), "the case"
    torch.testing.assert_close(read(model).detach(), read(eager(3)).detach())
    held = read(model).detach()
    kept = held.clone()
    ahead(step, 20)
    # What was handed out shows what it showed (or is filled behind every step: an array), and not what lies in memory
    # that was given up.
    found, expected = plainly(held.clone), eager(23)
    if not torch.equal(found, kept):
        torch.testing.assert_close(found, read(expected).detach())
    close(model, expected)


# What leads to the memory besides the tensor, from before compile or behind it: it is not given up then.
def of_numpy(model: Net) -> Any:
    array = np.full((WIDE, WIDE), 0.01, dtype=np.float32)
    model.last.weight = nn.Parameter(torch.from_numpy(array))
    return lambda: float(array[3, 3])


def shown_in_numpy(model: Net) -> Any:
    array = model.last.weight.detach().numpy()
    return lambda: float(array[3, 3])


def an_alias(model: Net) -> Any:
    alias = model.last.weight.detach()
    return lambda: float(alias[3, 3])


def a_storage(model: Net) -> Any:
    storage = model.last.weight.untyped_storage()
    return lambda: float(torch.empty(0).set_(storage)[3 * WIDE + 3])


def an_array_of_the_exchange(model: Net) -> Any:
    array = np.from_dlpack(model.last.weight.detach())
    return lambda: float(array[3, 3])


@pytest.mark.parametrize(
    "way", [of_numpy, shown_in_numpy, an_alias, a_storage, an_array_of_the_exchange], ids=lambda f: f.__name__
)
def test_what_another_way_leads_to_is_kept(way: Callable[[Net], Any]) -> None:
    """Who took it before ``compile`` finds what he always has: the values of the last time that somebody read."""
    model = Net()
    look = way(model)
    before = look()
    step = ahead(compiled(model))
    assert look() == before != 0
    ahead(step, 5)
    assert look() == before


def test_a_graph_that_is_older_keeps_its_weights() -> None:
    model, other = Net(), Net()
    step, x = compiled(model), batch().requires_grad_()
    value = loss(model, x)
    ahead(step)
    (found,) = torch.autograd.grad(value, x)
    (expected,) = torch.autograd.grad(loss(other, x), x)
    torch.testing.assert_close(found, expected)
    del value
    close(model, eager(3))


def test_an_address_that_was_told_stays_good() -> None:
    model = Net()
    step = ahead(compiled(model), 1)
    place = model.last.weight.data_ptr()
    ahead(step, 20)
    assert not given_up(model.last.weight) and given_up(model.first.weight)
    assert plainly(model.last.weight.data_ptr) == place


def test_who_still_reads_keeps_what_he_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's operation was told its values, and takes longer than some steps."""
    model = Net()
    step = ahead(compiled(model), 1)
    begun, go, found = threading.Event(), threading.Event(), []
    thread = threading.Thread(target=lambda: found.append(torch.mul(model.last.weight.detach(), 1)))

    def slowly(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function is torch.mul:
            begun.set()
            assert go.wait(60)
        return plainly(function, *args, **kwargs)

    monkeypatch.setattr(guard, "plainly", slowly)
    thread.start()
    assert begun.wait(60)
    ahead(step, 4)
    go.set()
    thread.join()
    torch.testing.assert_close(found[0], eager(1).last.weight.detach())
    ahead(step, 20)
    assert given_up(model.last.weight)


def in_a_child(model: Net) -> torch.Tensor:
    """What lies in some of the last weight, in a process that is forked now and computes nothing."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, np.asarray(memory(model.last.weight)[3, :4], dtype=np.float32).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    return torch.from_numpy(np.frombuffer(os.read(reads, 16), dtype=np.float32).copy())


def test_a_forked_child_finds_what_was_trained() -> None:
    model = Net()
    ahead(compiled(model))
    assert given_up(model.last.weight), "the case"
    torch.testing.assert_close(in_a_child(model), eager(3).last.weight.detach()[3, :4])


def test_the_step_goes_and_what_it_trained_stays() -> None:
    model = Net()
    step = ahead(compiled(model))
    assert given_up(model.last.weight), "the case"
    del step
    gc.collect()
    torch.testing.assert_close(torch.from_numpy(memory(model.last.weight)), eager(3).last.weight.detach())


def test_what_is_lost_is_no_number() -> None:
    """The device failed in a step, which had used up the state: zeros would pass for weights."""
    model = Net()
    step = ahead(compiled(model))
    for array in step.arrays()[0].values():
        array.delete()
    with pytest.raises(RuntimeError):
        model.last.weight.sum()
    with pytest.warns(UserWarning, match="could not write back what it trained"):
        del step
        gc.collect()
    assert math.isnan(float(model.last.weight[3, 3])) and math.isnan(float(model.first.weight[3, 3]))


def test_a_certificate_that_fails_later_leaves_the_module_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    step = ahead(compiled(model, certificate="full"))
    assert given_up(model.last.weight), "the case"
    real = certify.certify

    def wrong(measured: Any) -> Any:
        return replace(measured, loss=measured.loss * 2)

    def broken(measured: Any, *rest: Any) -> Any:
        *rest, again = rest
        return real(wrong(measured), *rest, lambda values: wrong(again(values)))

    monkeypatch.setattr(certify, "certify", broken)
    step(batch(3))
    with pytest.raises(bridge.Refused, match="certificate"):
        step(batch(3))
    close(model, eager(3))


def test_a_loop_that_reads_all_the_time_loses_nothing() -> None:
    model = Net()
    step = ahead(compiled(model), 1)
    for _ in range(4):
        float(model.last.weight.detach()[0, 0])
        ahead(step, 1)
        assert not given_up(model.last.weight)


def test_a_step_that_shares_its_module_gives_nothing_up() -> None:
    model = Net()
    one = compiled(model)
    other = bridge.compile(
        model.last,
        lambda m, b: m(b).square().mean(),
        sgd(model.last),
        example_batch=batch(),
        certificate="none",
        cache=False,
        quiet=True,
        share=one,
    )
    for _ in range(4):
        one(batch())
        other(batch())
        assert not given_up(model.last.weight) and not given_up(model.first.weight)


def test_it_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENTE_KEEP_MODULE", "1")
    model = Net()
    first = memory(model.last.weight)
    ahead(compiled(model), 5)
    assert np.array_equal(memory(model.last.weight), first)


def saves(model: nn.Module, found: list[float]) -> Callable[..., None]:
    """What a handler of a signal does before the machine is taken away."""

    def handler(*_: Any) -> None:
        found.append(float(saved(model.state_dict())["last.weight"][3, 3]))

    return handler


@pytest.fixture
def on_signal() -> Iterator[Callable[[int, Any], None]]:
    before: dict[int, Any] = {}

    def put(number: int, handler: Any) -> None:
        before.setdefault(number, signal.signal(number, handler))

    yield put
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM], ids=lambda n: n.name)
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_signal_inside_of_a_call_saves_what_was_trained(
    number: signal.Signals, where: str, on_signal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the step is handed over, or behind it. Most handlers wait for the call's end; a clock's does not."""
    model = Net()
    step, found = ahead(compiled(model)), []
    on_signal(number, saves(model, found))
    real = step._run

    def run(*arguments: Any) -> Any:
        if where == "before":
            signal.raise_signal(number)
        value = real(*arguments)
        if where == "after":
            signal.raise_signal(number)
        return value

    monkeypatch.setattr(step, "_run", run)
    assert given_up(model.last.weight), "the case"
    ahead(step, 1)
    clock = number is signal.SIGALRM and where == "before"
    assert found == [pytest.approx(float(eager(3 if clock else 4).last.weight.detach()[3, 3]), rel=1e-5)]
    monkeypatch.undo()
    ahead(step, 2)
    close(model, eager(6))


def test_a_signal_whose_values_are_in_a_programs_hands_saves_no_zeros(on_signal: Any) -> None:
    model = Net()
    step, found = ahead(compiled(model)), []
    on_signal(signal.SIGALRM, saves(model, found))
    compiled_step = step.programs[0].compiled
    run = compiled_step.executable

    def handed_over(*arguments: Any) -> Any:
        value = run(*arguments)
        signal.raise_signal(signal.SIGALRM)  # what went in is used up, and what came out is nobody's yet
        return value

    object.__setattr__(compiled_step, "executable", handed_over)
    with pytest.warns(UserWarning, match="its values cannot be had"):
        step(batch())
    object.__setattr__(compiled_step, "executable", run)
    assert math.isnan(found[0])
    close(model, eager(4))


class Trainer:
    """Holds the step in a cycle, and looks at the model when the collector takes it."""

    def __init__(self, model: nn.Module, step: bridge.Step, found: list[float]) -> None:
        self.model, self.step, self.found, self.me = model, step, found, self

    def __del__(self) -> None:
        self.found.append(float(self.model.last.weight.detach()[3, 3]))


@pytest.mark.parametrize("how", ["a cycle", "the module's", "a callback", "a callback in a cycle"])
def test_who_is_told_of_the_end_reads_what_was_trained(how: str) -> None:
    """The collector clears weak references before it calls finalizers: nobody is there to be asked."""
    model, found = Net(), []
    step = ahead(compiled(model))
    assert given_up(model.last.weight), "the case"
    if how == "a cycle":
        Trainer(model, step, found)
    elif how == "the module's":
        model.step = step
        Trainer(model, step, found)
    else:
        weakref.finalize(step, saves(model, found))
        if how == "a callback in a cycle":
            cycle = [step]
            cycle.append(cycle)
            del cycle
    del step
    if how == "the module's":
        del model.step
    gc.collect()
    assert found == [pytest.approx(float(eager(3).last.weight.detach()[3, 3]), rel=1e-5)]


def test_what_steps_do_not_change_keeps_its_memory() -> None:
    """It is the same in both places, and who reads it unasked (``torch.tensor``) is right."""

    class Adapted(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first.requires_grad_(False)
            self.register_buffer("mask", torch.full((WIDE,), 2.0).repeat(WIDE, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.mask[0]

    model = Adapted()
    first = memory(model.first.weight)
    ahead(compiled(model), 4)
    assert given_up(model.last.weight), "the case"
    assert np.array_equal(memory(model.first.weight), first)
    assert bool((memory(model.mask) == 2.0).all())


@pytest.mark.parametrize("cut", ["rows", "columns", "data"])
def test_what_lies_beside_a_tensor_in_its_memory_is_left_alone(cut: str) -> None:
    model = Net()
    whole = torch.full((3 * WIDE, 2 * WIDE), 7.0)
    with torch.no_grad():
        whole[:WIDE, :WIDE] = model.last.weight
        part = {"rows": whole.view(-1)[: WIDE * WIDE].view(WIDE, WIDE), "columns": whole[:WIDE, ::2]}.get(cut)
        if part is None:
            model.last.weight.data = whole[:WIDE, :WIDE]
        else:
            model.last.weight = nn.Parameter(part)
    del whole, part
    ahead(compiled(model), 4)
    storage = plainly(lambda: model.last.weight.detach().untyped_storage())
    assert bool((torch.empty(0).set_(storage)[-WIDE * WIDE :] == 7.0).all())


def test_a_child_that_is_forked_with_a_hidden_write_finds_what_was_trained() -> None:
    model = Net()
    alias = model.first.bias.detach()
    ahead(compiled(model))
    assert given_up(model.last.weight), "the case"
    alias.add_(1.0)  # which the module's refusal to be filled is about
    torch.testing.assert_close(in_a_child(model), eager(3).last.weight.detach()[3, :4])


def test_a_signal_while_a_loss_is_waited_for_saves_what_was_trained(on_signal: Any) -> None:
    """torch asks no class of its own meanwhile, and a handler's reads must be asked."""
    model = Net()
    step, found = ahead(compiled(model)), []
    on_signal(signal.SIGALRM, saves(model, found))
    value = step(batch())
    real = value._fetch
    value._fetch = lambda: (signal.raise_signal(signal.SIGALRM), real())[1]
    float(value)
    assert found == [pytest.approx(float(eager(4).last.weight.detach()[3, 3]), rel=1e-5)]
