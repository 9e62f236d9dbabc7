"""Where a value is NaN its gradient is torch's: NaN everywhere, the NaNs' alone, or none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from detente.bridge.capture.capture import capture
from detente.bridge.lower.gradient import with_gradient
from detente.bridge.lower.precision import x64
from detente.bridge.program.program import Program
from detente.bridge.random.keys import step_key

NAN = float("nan")
ROWS = ([1.0, 2.0, 2.0, 1.0], [1.0, NAN, 3.0, 2.0], [1.0, NAN, 3.0, 0.0], [1.0, NAN, NAN, 0.0])
CASES = {
    "max": torch.max,
    "min": torch.min,
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "amax": lambda x: torch.amax(x, 0),
    "amin": lambda x: torch.amin(x, 0),
    "aminmax": lambda x: sum(torch.aminmax(x, dim=0)),
    "prod": torch.prod,
    "prod over a dimension": lambda x: torch.prod(x, 0),
    "cumprod": lambda x: torch.cumprod(x, 0).sum(),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "maximum": lambda x: torch.maximum(x, x.flip(0) * 2).sum(),
    "minimum": lambda x: torch.minimum(x, x.flip(0) * 2).sum(),
    "clamp": lambda x: x.clamp(0.5, 1.5).sum(),
    "nextafter": lambda x: torch.nextafter(x, x.flip(0)).sum(),
}


class Every(nn.Module):
    """Every case on parameters of its own, so that one program tells all gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList(nn.Parameter(torch.tensor(row)) for _ in CASES for row in ROWS)

    def forward(self, _):
        functions = [f for f in CASES.values() for _ in ROWS]
        return sum(f(row) for f, row in zip(functions, self.rows, strict=True))


@pytest.fixture(scope="module")
def gradients():
    model = Every()
    captured = capture(model, lambda m, batch: m(batch), torch.zeros(1))
    program = Program(captured.graph)
    values = {n: t.detach().numpy() for n, t in captured.weights.tensors.items()}
    with x64():
        run = jax.jit(program.gradients(program.connected))
        _, found = run(values, [np.zeros(1, np.float32)], step_key(0, 0))
    theirs = torch.autograd.grad(model(torch.zeros(1)), list(model.rows))
    return [(np.asarray(found[f"rows.{i}"]), t.numpy()) for i, t in enumerate(theirs)]


@pytest.mark.parametrize("name", CASES)
def test_gradients_beside_nan(name, gradients):
    first = list(CASES).index(name) * len(ROWS)
    for row, (ours, theirs) in zip(ROWS, gradients[first : first + len(ROWS)], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=str(row))


def test_a_stated_gradient_has_derivatives_of_its_own():
    def product(x):
        return jnp.prod(with_gradient(jax.lax.stop_gradient(x), x))

    x = jnp.array([2.0, 3.0, 5.0])
    np.testing.assert_allclose(jax.hessian(product)(x), jax.hessian(jnp.prod)(x))


def test_a_stated_gradient_keeps_the_sign_of_zero():
    assert np.signbit(with_gradient(jnp.array(-0.0), jnp.array(1.0)))
