"""Ctrl-C at every line of a call: whatever it meets, the step goes on, and each batch counted once or not at all."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import pytest
import torch

import detente
from detente import bridge
from tests.bridge.between.loops import Net, batches, cross_entropy, eager

OURS = str(Path(bridge.__file__).parent)


@pytest.fixture(autouse=True)
def jaxs_widths() -> Iterator[None]:
    """A function of ``settrace`` raises where no signal comes: behind a block, and before its ``__exit__``. JAX's 64
    bits would be on for every test of this process."""
    with jax.enable_x64(False):
        yield


class Press:
    """SIGINT at the ``at``-th line of our own code that runs in the block."""

    def __init__(self, at: int) -> None:
        self.left, self.lines = at, 0

    def __enter__(self) -> Press:
        sys.settrace(self._call)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename.startswith(OURS) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        if event == "line":
            self.lines += 1
            if self.lines == self.left:
                signal.raise_signal(signal.SIGINT)
        return self._line


def made(count: int) -> tuple[Any, Any, list[Any]]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, batches(count)


def lines_of(call: Callable[[], Any]) -> int:
    with Press(-1) as press:
        call()
    return press.lines


def interrupted(step: Any, given: list[Any], press: Callable[[int], int]) -> int:
    """Steps through all batches, each interrupted once; one that did not count is given again. How often the interrupt
    reached us."""
    reached = 0
    for i, batch in enumerate(given):
        before = step.count
        try:
            with Press(press(i)):
                step(batch)
        except KeyboardInterrupt:
            reached += 1
        step._book()  # what the next call does first
        if step.count == before:
            step(batch)
        assert step.count == before + 1
    return reached


@pytest.mark.parametrize("behind", [False, True], ids=["plain", "taking over"])
def test_an_interrupt_at_any_line_leaves_a_step_that_goes_on(behind: bool) -> None:
    """Every line of a steady call in turn; ``taking over``: of a call that takes over what the loop has written."""
    model, optimizer, given = made(4)
    step = detente.compile(model, cross_entropy, optimizer, example_batch=given[0], seed=3, cache=False)
    for batch in given[:3]:
        float(step(batch))

    def wrote() -> None:
        if behind:
            with torch.no_grad():
                model.last.bias.mul_(1.0)

    wrote()
    length = lines_of(lambda: step(given[3]))
    assert length > 20
    rest = batches(length)
    reached = 0
    for i, batch in enumerate(rest):
        wrote()
        reached += interrupted(step, [batch], lambda _, at=i + 1: at)
    assert reached > length // 2
    # The same batches, each once, in eager.
    model_e, optimizer_e, given = made(4)
    plain = eager(model_e, cross_entropy, optimizer_e)
    for batch in [*given, *rest]:
        plain(batch)
    step.sync_to_torch()
    for (name, mine), theirs in zip(model.state_dict().items(), model_e.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def test_an_interrupted_first_or_second_step_is_certified_after_all() -> None:
    """Where capture, compilation and the certificate run: at some lines of many."""
    for at in (1, 10, 60, 300, 1500, 6000):
        model, optimizer, given = made(4)
        step = detente.compile(model, cross_entropy, optimizer, example_batch=given[0], seed=3, cache=False)
        interrupted(step, given, lambda i, at=at: at if i < 2 else -1)
        assert step.certificate is not None and step.certificate.ok, at
        model_e, optimizer_e, given = made(4)
        plain = eager(model_e, cross_entropy, optimizer_e)
        for batch in given:
            plain(batch)
        step.sync_to_torch()
        torch.testing.assert_close(model.last.weight, model_e.last.weight, rtol=1e-4, atol=1e-5)


def test_a_sync_that_is_interrupted_is_made_again() -> None:
    model, optimizer, given = made(4)
    step = detente.compile(model, cross_entropy, optimizer, example_batch=given[0], seed=3, cache=False)
    for batch in given:
        float(step(batch))
    trained = step.state_dict()
    step.sync_to_torch()
    float(step(given[0]))
    length = lines_of(step.sync_to_torch)
    for at in range(1, length, 7):
        float(step(given[0]))
        trained = step.state_dict()
        try:
            with Press(at):
                step.sync_to_torch()
        except KeyboardInterrupt:
            pass
        step.sync_to_torch()
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, trained[name], rtol=0, atol=0)
