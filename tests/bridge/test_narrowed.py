"""Products of TF32 on a processor that has none: what is rounded, what is not, and what a certificate makes of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import detente
from detente.bridge.certify import narrowed
from detente.bridge.certify.ways import Way
from detente.bridge.lower import precision

TF32 = Way(tf32=True)


def test_a_number_of_float32_keeps_ten_bits_and_what_is_none_stays():
    eleven = torch.tensor([1 + 2**-10, -(1 + 2**-11), 1 + 2**-12, 0.0, -0.0, 3e38, 1e-40])
    kept = narrowed.rounded(eleven)
    assert kept[:3].tolist() == [1 + 2**-10, -(1 + 2**-10), 1.0]
    assert bool((kept - eleven).abs().le(eleven.abs() * 2**-11 + 1e-41).all())
    odd = torch.tensor([float("nan"), float("inf"), -float("inf")])
    assert torch.equal(narrowed.rounded(odd).isnan(), odd.isnan()) and narrowed.rounded(odd)[1] == float(
        "inf"
    )
    for other in (
        torch.ones(3, dtype=torch.float64) / 3,
        torch.arange(3),
        torch.ones(2).bfloat16(),
        0.1,
        None,
    ):
        assert narrowed.rounded(other) is other


PRODUCTS = {
    "linear": lambda x, w: F.linear(x, w, x.new_ones(w.shape[0])),
    "batched": lambda x, w: torch.einsum("ab,cb->ac", x[None].expand(2, -1, -1)[0], w) @ w,
    "vector": lambda x, w: w @ x[0],
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None, None], w[None, None], w[None, None]),
    "convolution": lambda x, w: F.conv1d(
        x[None], w[:, None].expand(-1, len(x), -1)[..., :3], x.new_ones(len(w))
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_operands_are_rounded_forwards_and_backwards_and_nothing_else(name):
    """On the grid of TF32 nothing changes; off it, a product and its gradients are wrong by about 2^-11."""
    torch.manual_seed(0)
    run = PRODUCTS[name]

    def found(way, x, w):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        with way.inside():
            y = run(x, w)
            y.square().sum().backward()
        return y.detach(), x.grad, w.grad

    x, w = torch.randn(8, 16), torch.randn(8, 16)
    exact = found(Way(), x.double(), w.double())
    for narrow, plain, true in zip(found(TF32, x, w), found(Way(), x, w), exact, strict=True):
        far = float((narrow - true).norm() / true.norm())
        assert 2e-5 < far < 2e-3 and float((plain - true).norm() / true.norm()) < 2e-6
    wide = found(TF32, x.double(), w.double())
    assert all(torch.equal(a, b) for a, b in zip(wide, exact, strict=True) if name != "attention")


def test_a_bias_is_added_as_it_is_and_its_gradient_is_a_sum():
    odd = torch.full((4,), 1 + 2**-20)
    weight, x = torch.zeros(4, 1, 1), torch.ones(2, 1, 5)
    with TF32.inside():
        assert torch.equal(F.linear(torch.ones(2, 3), torch.zeros(4, 3), odd), odd.expand(2, 4))
        bias = odd.clone().requires_grad_()
        y = F.conv1d(x, weight, bias)
        y.backward(torch.full_like(y, 1 + 2**-20))
    assert torch.equal(bias.grad, torch.full((4,), (1 + 2**-20) * 10.0))


def test_a_certificate_of_a_program_in_tf32_knows_what_torch_loses_there(monkeypatch):
    """The step computes in float32 here. Judged as TF32 it passes with room; and a step that is off by as much as TF32
    is passes as TF32 and fails as float32."""
    said = {}
    for asked in (False, True):
        monkeypatch.setattr("detente.bridge.step.certifier.in_tf32", lambda matmul, asked=asked: asked)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
        batch = torch.randn(16, 32)
        step = detente.compile(
            model, lambda m, b: m(b).square().mean(), torch.optim.AdamW(model.parameters()),
            example_batch=batch, matmul="tensorfloat32", cache=False, quiet=True,
        )  # fmt: skip
        step(batch)
        said[asked] = step.settled()
    assert said[False].ok and said[True].ok
    assert "TF32" in said[True].reference and "TF32" not in said[False].reference
    worst = {
        asked: max(row.reference_error / row.error for row in found.rows if row.kind == "gradient")
        for asked, found in said.items()
    }
    assert worst[True] > 30 * worst[False]


@pytest.mark.parametrize(
    ("matmul", "backend", "is_tf32"),
    [
        ("tensorfloat32", "gpu", True),
        ("tensorfloat32", "cpu", False),
        ("tensorfloat32", "tpu", False),
        ("highest", "gpu", False),
    ],
)
def test_products_are_narrow_where_they_were_asked_for_and_there_are_any(
    monkeypatch, matmul, backend, is_tf32
):
    monkeypatch.setattr(precision.jax, "default_backend", lambda: backend)
    assert precision.in_tf32(matmul) is is_tf32
