"""The certificate's reference where float64 itself goes wrong."""

from __future__ import annotations

import torch
from torch import nn

from detente import bridge


class Edge(nn.Module):
    """``0.1 + 0.9`` is 1 in float32; with the float32 number 0.1 in float64 it is a little more, and a root of what
    is left of 1 is NaN there and 0 here."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 1)
        self.tenth = nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        rest = 1.0 - (self.tenth + 0.9)
        return self.linear(x).pow(2).sum() + rest.pow(1.5)


def test_a_loss_that_is_not_finite_in_float64_is_judged_against_torch_at_its_own_precision():
    model, x = Edge(), torch.linspace(-1, 1, 12).reshape(3, 4)
    assert bool(model(x).isfinite()) and bool(model.double()(x.double()).isnan()), "the case"
    model = Edge()
    step = bridge.compile(
        model,
        lambda m, b: m(b),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=x,
        certificate="full",
    )
    step(x), step(x)
    assert "not finite in float64" in step.certificate.reference
    assert step.certificate.ok, str(step.certificate)
    kinds = {row.kind for row in step.certificate.rows if row.judged}
    assert {"loss", "gradient", "update"} <= kinds


def test_a_difference_is_found_against_that_reference_too(monkeypatch):
    from dataclasses import replace

    from detente.bridge.lower.driver import load_table
    from detente.bridge.lower.table import TABLE

    load_table()
    plain = TABLE["aten.linear.default"]
    wrong = replace(plain, lower=lambda call, *a, **k: plain.lower(call, *a, **k) * 1.01)
    monkeypatch.setitem(TABLE, plain.op, wrong)
    model, x = Edge(), torch.linspace(-1, 1, 12).reshape(3, 4)
    step = bridge.compile(
        model,
        lambda m, b: m(b),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=x,
        certificate="full",
    )
    step(x)
    certificate = step.settled()
    assert "not finite in float64" in certificate.reference and not certificate.ok
