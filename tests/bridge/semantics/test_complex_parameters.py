"""Complex parameters (spectral weights) train as in eager PyTorch: torch's gradient is the conjugate of JAX's, and its
optimizers take a complex number as two real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.refusal import Refused
from tests.sampled import sampled

X = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: a product with complex weights between two transforms. They are of two
    shapes, which an update that is traced once is written for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(3, 3, 5, dtype=torch.cfloat))
        self.gain = nn.Parameter(0.3 * torch.randn(1, 3, 5, dtype=torch.cfloat))
        self.skip = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.einsum("bim,iom->bom", torch.fft.rfft(x), self.weight) * (1 + self.gain)
        return torch.tanh(torch.fft.irfft(spectrum, n=8) + self.skip(x))


def build(layers: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Spectral() for _ in range(layers)))


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x.flip(-1)).square().mean()


def batches(count: int = 5) -> Iterator[torch.Tensor]:
    yield from (X + 0.1 * i for i in range(count))


def eager(
    model: nn.Module, optimizer: torch.optim.Optimizer, between: Callable[[nn.Module], Any]
) -> list[float]:
    found = []
    for x in batches():
        optimizer.zero_grad()
        value = loss(model, x)
        value.backward()
        between(model)
        optimizer.step()
        found.append(float(value.detach()))
    return found


def agree(
    make: Callable[[Any], torch.optim.Optimizer],
    layers: int = 2,
    between: Callable[[nn.Module], Any] = lambda model: None,
    **options: Any,
) -> Any:
    """Five steps through the bridge and in eager: losses, parameters and state. Returns the step."""
    ours, theirs = build(layers), build(layers)
    step = bridge.compile(ours, loss, make(ours.parameters()), example_batch=X, **options)
    found = [float(step(x)) for x in batches()]
    plain = make(theirs.parameters())
    assert found == pytest.approx(eager(theirs, plain, between), rel=1e-4)
    assert step.certificate.ok
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(
            a.detach().clone(), b.detach(), rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    return step


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-2),
}


@pytest.mark.parametrize("name", sampled(OPTIMIZERS, 3))
def test_every_optimizer_of_torch(name: str) -> None:
    agree(OPTIMIZERS[name])


@pytest.mark.parametrize("form", sampled(["rolled", "rolled+full", "inside"], 3))
def test_loops_over_layers(form: str) -> None:
    step = agree(OPTIMIZERS["adamw"], layers=8, form=form)
    assert step.choice.form == form


def test_clipping_by_norm_counts_both_parts() -> None:
    def clipped(model: nn.Module) -> None:
        assert float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)) > 0.01

    agree(OPTIMIZERS["sgd"], between=clipped, clip_norm=0.01)


def test_micro_batches() -> None:
    agree(OPTIMIZERS["sgd"], accumulate=2)


def test_clipping_by_value_is_refused_as_in_torch() -> None:
    model = build()
    with pytest.raises(Refused, match="no order of complex numbers"):
        bridge.compile(model, loss, OPTIMIZERS["sgd"](model.parameters()), example_batch=X, clip_value=0.1)


def test_averages() -> None:
    model = build()
    averaged = torch.optim.swa_utils.AveragedModel(
        build(), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    step = bridge.compile(model, loss, OPTIMIZERS["sgd"](model.parameters()), example_batch=X, ema=0.9)
    for x in batches():
        step(x)
        averaged.update_parameters(model)
    wanted = averaged.module.state_dict()
    for name, value in step.averages().items():
        torch.testing.assert_close(torch.as_tensor(value), wanted[name], rtol=1e-5, atol=1e-6)


class Doubled(torch.autograd.Function):
    """z -> w z with a backward that is not what differentiation gives: the conjugation must be torch's."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(z, w)
        return w * z

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z, w = ctx.saved_tensors
        return 2 * g * w.conj(), 3j * g * z.conj()


def test_a_backward_of_the_users_gets_and_gives_torchs_gradients() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.w = nn.Linear(8, 8), nn.Parameter(torch.randn(5, dtype=torch.cfloat))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.irfft(Doubled.apply(torch.fft.rfft(self.first(x)), self.w), n=8)

    ours, theirs = Custom(), Custom()
    step = bridge.compile(ours, loss, torch.optim.SGD(ours.parameters(), 0.1), example_batch=X)
    found = [float(step(x)) for x in batches()]
    assert found == pytest.approx(
        eager(theirs, torch.optim.SGD(theirs.parameters(), 0.1), lambda m: None), rel=1e-4
    )
    torch.testing.assert_close(ours.w.detach().clone(), theirs.w.detach(), rtol=1e-4, atol=1e-6)


def test_a_checkpoint_and_the_optimizers_state_keep_both_parts(tmp_path: Any) -> None:
    ours = build()
    optimizer = OPTIMIZERS["adam"](ours.parameters())
    step = bridge.compile(ours, loss, optimizer, example_batch=X)
    for x in batches(3):
        step(x)
    step.save(tmp_path / "step.safetensors")
    straight = [float(step(x)) for x in batches(3)]
    step.load(tmp_path / "step.safetensors")
    assert [float(step(x)) for x in batches(3)] == straight
    moment = optimizer.state[ours[0].weight]["exp_avg"]
    assert moment.is_complex() and float(moment.imag.abs().max()) > 0
