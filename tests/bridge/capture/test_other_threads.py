"""While one thread captures or certifies, torch's functions are torch's own in every other one."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

import detente
from detente import bridge
from detente.bridge.capture.causal import without_mask_hints
from detente.bridge.capture.ctc import keep_ctc
from detente.bridge.capture.data import keep_data
from detente.bridge.capture.derivative import Derivatives, keep_derivatives
from detente.bridge.capture.functions import keep_functions
from detente.bridge.capture.hooks import keep_hooks
from detente.bridge.capture.mapped import keep_maps
from detente.bridge.capture.packed import keep_packed
from detente.bridge.capture.regions import keep_checkpoints, keep_metadata
from detente.bridge.capture.seeds import keep_seeds
from detente.bridge.capture.statistics import keep_statistics
from detente.bridge.capture.transforms import keep_transforms
from detente.bridge.certify.certify import _no_autocast
from detente.bridge.certify.widened import widened
from detente.bridge.random import twin
from detente.bridge.refusal import Refused

MADE = torch.Generator().manual_seed(0)
X = torch.randn(4, 3, generator=MADE)
LOGITS = torch.randn(8, 2, 5, generator=MADE)


def elsewhere(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in another thread, with its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


def ctc() -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    F.ctc_loss(logits.log_softmax(2), torch.tensor([[1, 2, 3], [2, 2, 4]]), (8, 8), (3, 3)).backward()
    return logits.grad


def function() -> torch.Tensor:
    x = X.clone().requires_grad_()
    Twice.apply(x).sum().backward()
    return x.grad


def hook() -> torch.Tensor:
    x = X.clone().requires_grad_()
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda gradient: 3 * gradient)
    y.sum().backward()
    return torch.stack([x.grad, y.grad])


def seed() -> torch.Tensor:
    state = torch.get_rng_state()
    torch.manual_seed(7)
    found = torch.rand(3)
    torch.set_rng_state(state)
    return found


def packed() -> torch.Tensor:
    torch.manual_seed(0)
    layer, lengths = nn.LSTM(3, 4), torch.tensor([4, 2])
    given = nn.utils.rnn.pack_padded_sequence(X[:, None].expand(4, 2, 3), lengths)
    out, _ = layer(given)
    return torch.cat([out.data.flatten(), given.batch_sizes.float()])


def statistics() -> torch.Tensor:
    layer = nn.BatchNorm1d(3, momentum=None)
    layer(X), layer(2 * X)
    return torch.cat([layer.running_mean, layer.running_var])


def causal() -> torch.Tensor:
    """The hint goes on to whoever is below."""
    from torch.nn.modules import transformer

    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return torch.tensor(transformer._detect_is_causal_mask(mask, None, 4))


def derivative() -> torch.Tensor:
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
    gradient.sum().backward()
    return x.grad


def transform() -> torch.Tensor:
    return torch.stack(
        [
            torch.func.grad(lambda x: x.square().sum())(X),
            torch.func.jvp(torch.sin, (X,), (X,))[1],
            torch.func.functionalize(torch.sin)(X),
        ]
    )


def mapped() -> torch.Tensor:
    return torch.vmap(lambda row: row.square().sum())(X)


def checkpoint(reentrant: bool) -> torch.Tensor:
    """How often the body runs: again in the backward pass."""
    runs = []

    def body(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x.sin().cos()

    x = X.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(body, x, use_reentrant=reentrant).sum().backward()
    assert len(runs) == 2
    return x.grad


def set_data() -> torch.Tensor:
    x = X.clone()
    x.data = x.data * 2
    return nn.Linear(3, 2).double().weight.new_ones(1) + x.sum()


def default_dtype() -> torch.Tensor:
    assert torch.get_default_dtype() is torch.float32
    assert torch.rand(2).dtype is torch.tensor([0.5]).dtype is torch.float32
    return torch.arange(3) / 7


def autocast() -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return X @ X.t()


def replaced(enter: Callable[..., AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: enter(Derivatives())


CASES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], torch.Tensor]]] = {
    "ctc": (keep_ctc, ctc),
    "function": (lambda: keep_functions(itertools.count(1)), function),
    "hook": (lambda: keep_hooks({}), hook),
    "seed": (keep_seeds, seed),
    "packed": (keep_packed, packed),
    "statistics": (keep_statistics, statistics),
    "causal": (without_mask_hints, causal),
    "derivative": (keep_derivatives, derivative),
    "transform": (replaced(keep_transforms), transform),
    "map": (keep_maps, mapped),
    "checkpoint": (keep_checkpoints, lambda: checkpoint(False)),
    "reentrant checkpoint": (lambda: keep_functions(itertools.count(1)), lambda: checkpoint(True)),
    "metadata": (keep_metadata, lambda: checkpoint(False)),
    "data": (keep_data, set_data),
    "default dtype": (widened, default_dtype),
    "autocast": (_no_autocast, autocast),
    "checkpoint in a twin": (lambda: twin(0, 0), lambda: checkpoint(False)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_torchs_own_in_another_thread(name: str) -> None:
    around, work = CASES[name]
    wanted = work()
    with around():
        found = elsewhere(work)
    assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    assert torch.equal(work(), wanted)  # and everywhere, behind it


class Asks(nn.Module):
    """Calls ``ask`` in the middle of its forward, while it is captured and while it is certified."""

    ask: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if Asks.ask is not None:
            Asks.ask()
        return self.last(x.float())


def test_in_the_middle_of_a_capture_and_of_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is replaced there, in all, and torch's own stack of modes, which is one for all threads."""
    works = [work for name, (_, work) in CASES.items() if name != "seed"]
    wanted = [work() for work in works]
    said: queue.SimpleQueue[str] = queue.SimpleQueue()  # a list would be one that forward writes

    def compare() -> None:
        for work, right in zip(works, wanted, strict=True):
            try:
                found = work()
                alike = found.dtype == right.dtype and torch.equal(found, right)
                said.put("" if alike else work.__name__)
            except Exception as error:
                said.put(f"{work.__name__}: {error}")

    monkeypatch.setattr(Asks, "ask", staticmethod(lambda: elsewhere(compare)))
    model = Asks()
    step = detente.compile(
        model,
        lambda m, x: m(x).square().mean(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=X,
        cache=False,
    )
    captured = said.qsize()
    assert captured >= len(works)
    step(X), step(X)
    assert said.qsize() >= captured + 3 * len(works)  # the certificate ran it, too
    assert not {said.get() for _ in range(said.qsize())} - {""}


def test_two_captures_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins in the middle of the first."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def capture() -> None:
        try:
            found.put([str(reason) for reason in bridge.check(nn.Linear(3, 2), loss, X)])
        except BaseException as error:
            found.put(error)

    def begin() -> None:
        thread = threading.Thread(target=capture)
        thread.start()
        thread.join(0.5)  # what does not wait is in the middle, too
        threads.put(thread)

    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        y = Twice.apply(model(x))
        y.register_hook(lambda gradient: 2 * gradient)
        return y.square().mean()

    threads: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
    before = torch.ctc_loss, torch.Tensor.register_hook, torch.autograd.Function.__dict__["apply"]
    monkeypatch.setattr(Asks, "ask", staticmethod(begin))
    assert not bridge.check(Asks(), loss, X)
    begun = [threads.get() for _ in range(threads.qsize())]
    for thread in begun:
        thread.join()
    assert begun and [found.get() for _ in begun] == [[]] * len(begun)
    assert before == (torch.ctc_loss, torch.Tensor.register_hook, torch.autograd.Function.__dict__["apply"])


def test_in_its_own_thread_it_is_the_captures() -> None:
    with keep_seeds(), pytest.raises(Refused, match="seeds torch's generator"):
        torch.manual_seed(1)
    assert torch.random.default_generator is torch.default_generator
