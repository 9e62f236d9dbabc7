"""After any refusal nothing of the training is lost: sync, save, and going on in plain eager, for every code."""

from __future__ import annotations

import copy
import dataclasses
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente import bridge
from detente.bridge.certify import certify
from detente.bridge.refusal import CODES, Reason
from detente.bridge.step import profile as step_module
from tests.bridge.between.loops import Net, batches, cross_entropy, eager
from tests.bridge.between.test_forked_processes import in_a_child

torch.library.define("tests_after_a_refusal::unknown", "(Tensor x) -> Tensor")
torch.library.impl("tests_after_a_refusal::unknown", "CompositeExplicitAutograd", lambda x: x.clone())
torch.library.register_fake("tests_after_a_refusal::unknown", torch.empty_like)


class NoTensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


OWN = "what eager raises"  # no refusal: an exception that a loop may catch by its kind


class Tries(Net):
    """Does from some step on what the bridge does not take; ``tries`` says what."""

    tries: str = ""
    calls: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if self.tries == "file":  # nothing of Python's that could be watched moves
            self.calls.write_text(self.calls.read_text() + ".")
            return out * (1 + len(self.calls.read_text()))
        return FORWARDS[self.tries](self, x, out) if self.tries else out


def grows(model: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    model.history.append(1.0)
    return out


def replaces_weight(model: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    model.last.weight = nn.Parameter(model.last.weight.detach() * 2)
    return out + model.last.weight.sum()


def hidden_write(model: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out = out.exp()
    with torch.no_grad():
        out[:, 0] = x.sum()
    return out


def tells(model: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.register_hook(lambda grad: None)
    return out


def fails(model: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("what the user's code raises")


def fails_by_name(model: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    raise KeyError("what the user's code raises")


FORWARDS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "control-flow": lambda m, x, out: 2 * out if m.last.weight.sum() > 100 else out,
    "dynamic-shape": lambda m, x, out: out + m.last.weight[m.last.weight > 0].cumsum(0).sum(),
    "op": lambda m, x, out: torch.ops.tests_after_a_refusal.unknown(out),
    "leaf-inplace": lambda m, x, out: m.last.weight.mul_(2).sum() + out,
    "no-grad-inplace": hidden_write,
    "hook": tells,
    "transform": lambda m, x, out: out.sum().backward() or out,
    "function": lambda m, x, out: NoTensor.apply(out * 1),
    "parameter": replaces_weight,
    "held-tensor": grows,
    "generator": lambda m, x, out: out * random.random(),
    "export": fails,
    OWN: fails_by_name,
}


@dataclasses.dataclass
class Trained:
    model: Any
    optimizer: Any
    step: Any
    wrong_loss: list[int]  # not empty: the loss is no number any more
    path: Path
    alias: torch.Tensor  # of a parameter, taken before compile


def another_thread(it: Trained, batch: Any) -> None:
    """A second thread, while the first is inside of a call."""
    found: list[BaseException] = []
    inside = it.step._step

    def slow(given: Any, placed: Any) -> Any:
        def other() -> None:
            try:
                it.step(given)
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        raise found[0]

    it.step._step = slow
    try:
        it.step(batch)
    finally:
        it.step._step = inside


def in_a_forked_process(it: Trained, batch: Any) -> None:
    """Raised there, and told here."""
    said = in_a_child(lambda: it.step(batch))
    raise bridge.Refused([Reason("fork", said)]) if "[fork]" in said else AssertionError(said)


def under_autocast(it: Trained, batch: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        it.step(batch)


def through_an_alias(it: Trained, batch: Any) -> None:
    it.alias[:] = 5.0
    it.step(batch)


def an_option(it: Trained, batch: Any) -> None:
    it.optimizer.param_groups[0]["differentiable"] = True
    it.optimizer.param_groups[0]["weight_decay"] = 0.0
    it.step(batch)


def loads(it: Trained, batch: Any) -> None:
    other = nn.Linear(2, 2)
    one = detente.compile(
        other,
        lambda m, b: m(b).sum(),
        torch.optim.SGD(other.parameters(), lr=0.1),
        example_batch=torch.ones(1, 2),
        cache=False,
    )
    one.save(it.path)
    it.step.load(it.path)


def wrong_program(it: Trained, batch: Any) -> None:
    """A program whose certificate fails: its step is taken back."""
    real = certify.certify

    def wrong(measured: Any) -> Any:
        bias = {"last.bias": measured.gradients["last.bias"] * 1.01}
        return dataclasses.replace(measured, gradients=dict(measured.gradients) | bias)

    def broken(measured: Any, *rest: Any) -> Any:
        *rest, again = rest
        return real(wrong(measured), *rest, lambda values: wrong(again(values)))

    certify.certify = broken
    try:
        it.step({name: t[:3] for name, t in batch.items()})
        it.step(batch)
    finally:
        certify.certify = real


def reads_a_file(it: Trained, batch: Any) -> None:
    """Seen where the step is certified: it is taken back."""
    it.model.calls = it.path.with_name("calls")
    it.model.calls.touch()
    it.model.tries = "file"
    it.step(batch)
    it.step(batch)


def without_a_profile(it: Trained, batch: Any) -> None:
    """A runtime that tells nothing; the batch was not trained on."""
    before, step_module.watch = step_module.watch, lambda *_: (None, {})
    try:
        it.step.profile(batch)
    finally:
        step_module.watch = before


OTHERS: dict[str, Callable[[Trained, Any], Any]] = {
    "batch": lambda it, batch: it.step({"other": batch["x"]}),
    "dtype": lambda it, batch: it.step(batch | {"x": batch["x"].double()}),
    "loss": lambda it, batch: (it.wrong_loss.append(1), it.step(batch)),
    "optimizer": an_option,
    "module-changed": through_an_alias,
    "threads": another_thread,
    "fork": in_a_forked_process,
    "around": under_autocast,
    "checkpoint": loads,
    "certificate": wrong_program,
    "repeat": reads_a_file,
    "profile": without_a_profile,
}
# Raised by ``compile`` alone, where nothing was trained yet.
AT_COMPILE = {"meta", "weights", "device", "form"}
# Of no refusal: a FloatingPointError when the loss is read; the step was taken, as in eager.
NO_REFUSAL = {"non-finite"}


def test_every_code_is_tried() -> None:
    assert (FORWARDS.keys() - {OWN}) | OTHERS.keys() | AT_COMPILE | NO_REFUSAL == CODES.keys()


def trained(wrong_loss: list[int]) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = Tries()
    model.history = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(m: Any, b: Any) -> Any:
        value = cross_entropy(m, b)
        return value.expand(2) if wrong_loss else value

    return model, optimizer, loss


@pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*multi-threaded, use of fork")
@pytest.mark.parametrize("code", [*FORWARDS, *OTHERS])
def test_nothing_is_lost(code: str, tmp_path: Path) -> None:
    given = batches(8)
    model_e, optimizer_e, loss_e = trained([])
    plain = eager(model_e, loss_e, optimizer_e)
    for batch in given[:4]:
        plain(batch)
    wanted = copy.deepcopy(model_e.state_dict())
    wrong_loss: list[int] = []
    model, optimizer, loss = trained(wrong_loss)
    alias = model.last.bias.detach()
    step = detente.compile(model, loss, optimizer, example_batch=given[0], seed=3, cache=False)
    it = Trained(model, optimizer, step, wrong_loss, tmp_path / "o.safetensors", alias)
    for batch in given[:4]:
        float(it.step(batch))
    model.tries = code if code in FORWARDS else ""
    with pytest.raises((bridge.Refused, KeyError)) as raised:
        OTHERS.get(code, lambda it, batch: it.step(batch))(it, given[4])
    refused = raised.value
    codes = {reason.code for reason in refused.reasons} if isinstance(refused, bridge.Refused) else {OWN}
    assert code in codes, str(refused)
    # More of the same is the same refusal, or goes on; what is there stays the trained state.
    it.step.sync_to_torch()
    assert it.step.count == 4
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(
            tensor, wanted[name], rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    it.step.save(tmp_path / "s.safetensors")
    # Plain eager goes on from there, with its moments.
    model.tries, optimizer.param_groups[0]["differentiable"] = "", False
    wrong_loss.clear()
    mine = eager(model, loss, optimizer)
    for batch in given[5:]:
        assert mine(batch) == pytest.approx(plain(batch), rel=2e-3)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(
            tensor, model_e.state_dict()[name], rtol=2e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
