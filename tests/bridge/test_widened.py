"""The certificate's reference in float64 where a module's code names float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.certify.widened import ReadsBits, widened
from detente.bridge.random import twin

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


class Named(nn.Module):
    """Multiplies what it cast to float32 by name: ``module.to(torch.float64)`` alone does not run."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.held = torch.linspace(0.1, 0.7, 6)  # no buffer: .to() leaves it
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        x = self.first(x).float()
        angle = torch.arange(6, dtype=torch.float32) / 6 * self.held
        x = nn.functional.softmax(x * angle.cos(), -1, dtype=torch.float32)
        x = x + torch.zeros(6) + torch.rand(6) + torch.arange(6) / 7
        return self.last(self.drop(x).to(torch.float32))


class Exact(Named):
    """The same with nothing named."""

    def forward(self, x):
        x, kind = self.first(x), x.dtype
        angle = torch.arange(6, dtype=kind) / 6 * self.held.to(kind)
        x = nn.functional.softmax(x * angle.cos(), -1)
        x = x + torch.zeros(6, dtype=kind) + torch.rand(6).to(kind) + torch.arange(6, dtype=kind) / 7
        return self.last(self.drop(x))


def stepped(model, context):
    model.to(torch.float64)
    with twin(11, 0), context:
        value = model(X.double()).pow(2).mean()
        value.backward()
    return value.detach(), [p.grad for p in model.parameters()]


def test_a_module_that_names_float32_runs_in_float64_with_the_same_random_numbers():
    with pytest.raises(RuntimeError, match="dtype"):
        Named().to(torch.float64)(X.double())
    value, gradients = stepped(Named(), widened())
    expected, theirs = stepped(Exact(), torch.enable_grad())
    assert value.dtype == torch.float64 and abs(float(value - expected)) <= 1e-13 * float(expected)
    for ours, exact in zip(gradients, theirs, strict=True):
        assert ours.dtype == torch.float64
        assert float((ours - exact).norm()) <= 1e-12 * float(exact.norm())


def test_grouped_products_have_a_float64_form():
    torch.manual_seed(0)
    a, b, c = torch.randn(6, 4), torch.randn(3, 4, 8), torch.randn(6, 8)
    ends = torch.tensor([1, 4, 6], dtype=torch.int32)
    cases = [(a, b, ends), (b.mT.contiguous(), a.mT, ends), (a.mT, c, ends), (b.mT.contiguous(), b, None)]
    for left, right, offs in cases:
        with widened():
            found = torch.ops.aten._grouped_mm(left.double(), right.double(), offs)
        assert found.dtype == torch.float64
        assert torch.allclose(found.float(), _by_hand(left, right, offs), rtol=1e-5, atol=1e-5)


def _by_hand(left, right, offs):
    if offs is None:
        return left @ right
    number = torch.bucketize(torch.arange(6), offs, right=True)
    if left.ndim == 2 and right.ndim == 3:
        return torch.stack([left[i] @ right[number[i]] for i in range(6)])
    if left.ndim == 3:
        return torch.stack([left[number[i]] @ right[:, i] for i in range(6)], 1)
    return torch.stack(
        [sum(torch.outer(left[:, i], right[i]) for i in range(6) if number[i] == g) for g in range(3)]
    )


def test_the_default_dtype_is_nobodys_business():
    with pytest.raises(ReadsBits), widened():
        assert torch.zeros(2).dtype == torch.float64
        assert torch.get_default_dtype() == torch.float32  # which other threads see
        torch.zeros(2).view(torch.int32)
    assert torch.get_default_dtype() == torch.float32
    assert torch.zeros(2).dtype == torch.float32


N, B = torch.arange(1, 7), torch.tensor([True, False, True])
UNNAMED = {
    "zeros": lambda: torch.zeros(2, 3),
    "a full one": lambda: torch.full((3,), 0.1),
    "a range": lambda: torch.arange(0, 1, 0.1),
    "a line": lambda: torch.linspace(0, 1, 7),
    "an identity": lambda: torch.eye(3),
    "a window": lambda: torch.hann_window(7),
    "a number": lambda: torch.tensor(0.5),
    "a list": lambda: torch.tensor([[0.5, 1.25]]),
    "a class": lambda: torch.Tensor([0.5, 1.25]),
    "a complex number": lambda: torch.tensor(0.5j),
    "integers that are divided": lambda: N / 7,
    "integers with a float": lambda: N * 0.3 + 0.1,
    "integers under a function": lambda: torch.exp(N).log1p().sqrt() + torch.sin(N) + N**-0.5,
    "truth values": lambda: B * 0.1,
    "a choice": lambda: torch.where(B, 0.1, 0.7),
    "a named mean": lambda: N.float().mean() + N.to(torch.float32).std(),
    "frequencies": lambda: torch.fft.rfft(N) * 1j,
    "written later": lambda: torch.tensor([0.0, 0.0]).index_fill_(0, torch.tensor([1]), 1 / 3),
    "the default, named": lambda: torch.full((3,), 0.1, dtype=torch.get_default_dtype()),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_what_is_made_without_a_dtype_is_as_if_the_default_were_float64(name):
    make = UNNAMED[name]
    torch.set_default_dtype(torch.float64)
    try:
        wanted = make() if "named" not in name else make().to(torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
    with widened():
        found = make()
    assert found.dtype == wanted.dtype
    tight = 1e-6 if name == "a named mean" else 1e-15
    assert torch.allclose(found, wanted, rtol=tight, atol=tight)


def test_integers_stay_what_they_are():
    with widened():
        assert (N + 1).dtype == (N // 2).dtype == torch.zeros_like(N).dtype == torch.int64
        assert (N > 2).dtype == torch.bool and torch.bincount(N).dtype == torch.int64
        assert torch.zeros(2, dtype=torch.int32).dtype == torch.int32


def test_an_array_of_numpys_is_shown_and_not_copied():
    array = np.zeros(3, np.float32)
    with widened():
        torch.from_numpy(array)[1] = 5.0
    assert array.tolist() == [0.0, 5.0, 0.0]


def test_inside_of_an_operator_of_a_higher_order_the_default_is_float64():
    """Where no mode is asked."""
    with widened(), torch.compiler.set_stance("force_eager"):
        branches = lambda x: x @ torch.ones(2), lambda x: x.sum()
        found = torch.cond(torch.tensor(True), *branches, (torch.ones(2),))
    assert found.dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


def test_the_certificate_measures_against_float64():
    model = Named()
    step = bridge.compile(
        model,
        lambda m, b: m(b).pow(2).mean(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=X,
    )
    step(X), float(step(X))
    certificate = step.certificate
    assert certificate.ok and certificate.reference.startswith("torch eager in float64")
    own = [row.reference_error for row in certificate.rows if row.kind == "gradient"]
    assert max(own) > 0  # torch's own error is known, and bounds what is allowed
