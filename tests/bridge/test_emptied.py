"""The live module's memory is given up while a step is ahead of it, and nobody ever reads zeros for weights."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import math
import mmap
import os
import threading
from collections.abc import Callable
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
            self.beside = nn.Linear(2400, 2000)

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


def test_a_forked_child_finds_what_was_trained() -> None:
    model = Net()
    ahead(compiled(model))
    assert given_up(model.last.weight), "the case"
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, np.asarray(memory(model.last.weight)[3, :4], dtype=np.float32).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    found = torch.from_numpy(np.frombuffer(os.read(reads, 16), dtype=np.float32).copy())
    torch.testing.assert_close(found, eager(3).last.weight.detach()[3, :4])


def test_the_step_goes_and_what_it_trained_stays() -> None:
    model = Net()
    step = ahead(compiled(model))
    assert given_up(model.last.weight), "the case"
    del step
    gc.collect()
    np.testing.assert_allclose(memory(model.last.weight), eager(3).last.weight.detach(), rtol=1e-4, atol=1e-6)


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
