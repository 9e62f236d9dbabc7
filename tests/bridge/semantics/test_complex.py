"""Complex numbers in a real loss: no imaginary part is lost, in values, in gradients, in the certificate."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente import bridge
from detente.bridge.lower.precision import x64
from detente.bridge.lower.table import TABLE
from detente.bridge.refusal import Refused
from detente.bridge.state.place import from_jax
from tests.quick_xla import OPTIONS
from tests.sampled import sampled

G = torch.Generator().manual_seed(0)
X = torch.randn(5, 6, generator=G, dtype=torch.float64)
ANGLES = torch.polar(torch.ones(3, dtype=torch.float64), torch.arange(3, dtype=torch.float64))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(6, 6).double(), nn.Linear(6, 6).double()


def written(z: torch.Tensor, write: Any) -> torch.Tensor:
    z = z * 1
    write(z)
    return z


def fft(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fft(m.a(x))


# what was wrong once: "abs", "l1_loss", "dist" and "pairwise_distance" took the real part alone
CASES: dict[str, Any] = {
    "abs": lambda m, x: torch.complex(m.a(x), m.b(x)).abs().mean(),
    "abs at 0": lambda m, x: (
        torch.complex(m.a(x) * 0, m.b(x) * 0).abs().mean() + m.a(x).mean() + m.b(x).mean()
    ),
    "absolute, square": lambda m, x: fft(m, x).absolute().square().mean(),
    "abs of view_as_complex": lambda m, x: torch.view_as_complex(m.a(x).view(5, 3, 2)).abs().sum(),
    "l1_loss": lambda m, x: F.l1_loss(fft(m, x), torch.fft.fft(m.b(x))),
    "dist": lambda m, x: torch.dist(fft(m, x), torch.fft.fft(m.b(x)), 3),
    "pairwise_distance": lambda m, x: F.pairwise_distance(fft(m, x), torch.fft.fft(m.b(x))).mean(),
    "norm": lambda m, x: fft(m, x).norm(p=1) + torch.linalg.vector_norm(fft(m, x), 3),
    "logsumexp": lambda m, x: torch.logsumexp(fft(m, x), 1).imag.sum() + fft(m, x)[0, 0].logsumexp(0).real,
    "angle": lambda m, x: fft(m, x).angle().sin().mean(),
    "sgn": lambda m, x: fft(m, x).sgn().imag.mean(),
    "conj": lambda m, x: (fft(m, x).conj() * torch.fft.fft(m.b(x))).imag.mean(),
    "polar": lambda m, x: torch.polar(m.a(x).abs() + 0.1, m.b(x)).imag.mean(),
    "real part asked for": lambda m, x: fft(m, x).to(torch.float64).pow(3).mean(),
    "write to .real": lambda m, x: written(fft(m, x), lambda z: z.real.mul_(2)).abs().mean(),
    "write to .imag": lambda m, x: written(fft(m, x), lambda z: z.imag.copy_(m.b(x))).abs().mean(),
    "write to view_as_real": lambda m, x: (
        written(fft(m, x), lambda z: torch.view_as_real(z)[..., 1].mul_(3)).abs().mean()
    ),
    "write to conj().imag": lambda m, x: (
        written(fft(m, x), lambda z: z.conj().imag.add_(m.b(x))).abs().mean()
    ),
    "stft": lambda m, x: (
        torch.stft(m.a(x), 4, 2, window=torch.ones(4, dtype=x.dtype), return_complex=True).abs().mean()
    ),
    "rotary embedding": lambda m, x: (
        torch.view_as_real(torch.view_as_complex(m.a(x).view(5, 3, 2)) * ANGLES).flatten(1).pow(3).mean()
    ),
}


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("name", sampled(CASES, 3))
def test_value_and_gradient_are_torchs(name: str) -> None:
    model, loss = Two(), CASES[name]
    f = bridge.functional(model, loss, X)
    with x64():
        ours, grads = (
            jax.jit(jax.value_and_grad(f)).lower(f.params, X.numpy()).compile(OPTIONS)(f.params, X.numpy())
        )
    value = loss(model, X)
    value.backward()
    torch.testing.assert_close(from_jax(ours), value.detach(), rtol=1e-9, atol=1e-12)
    for key, parameter in model.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(from_jax(grads[key]), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["logaddexp", "logcumsumexp"])
def test_what_takes_another_branch_is_refused_by_line(name: str) -> None:
    def loss(m: Any, x: torch.Tensor) -> torch.Tensor:
        z = fft(m, x)
        return (torch.logaddexp(z, z) if name == "logaddexp" else z.logcumsumexp(1)).real.sum()

    f = bridge.functional(Two(), loss, X)
    with pytest.raises(Refused, match=f"{name}.default of complex numbers") as refused, x64():
        jax.jit(f.apply)(f.params, X.numpy())
    where = refused.value.reasons[0].where
    assert where is not None and where.file == __file__


class Turning(nn.Module):
    """A complex buffer that is read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.register_buffer("turn", ANGLES.to(torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(self.a(x).view(5, 3, 2))
        with torch.no_grad():
            self.turn.lerp_(z.mean(0), 0.1)
        return (z * self.turn).imag.square().mean()


def compiled(model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return bridge.compile(model, lambda m, x: m(x), optimizer, example_batch=X.float(), cache=False)


def test_a_complex_buffer_is_certified_against_a_reference_that_keeps_its_imaginary_part() -> None:
    torch.manual_seed(2)
    step = compiled(Turning())
    for _ in range(2):
        step(X.float())
    assert step.certificate.ok
    row = next(row for row in step.certificate.rows if row.name == "turn")
    # Against a reference whose imaginary part is lost torch's own error is as large as the buffer itself.
    assert 0 < row.reference_error < 1e-6 and row.error < 1e-6


def test_an_imaginary_part_that_is_wrong_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    entry = TABLE["aten.lerp.Scalar"]

    def wrong(call: Any, *args: Any, **kwargs: Any) -> Any:
        found = entry.lower(call, *args, **kwargs)
        return jax.lax.complex(found.real, found.imag * 1.01)

    torch.manual_seed(2)
    monkeypatch.setitem(TABLE, "aten.lerp.Scalar", dataclasses.replace(entry, lower=wrong))
    step = compiled(Turning())
    step(X.float())
    with pytest.raises(Refused, match="buffer turn"):
        step(X.float())
