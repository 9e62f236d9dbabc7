"""cuDNN's attention: what it is taken for, what is done where it declines, and that a position more is no position.

The kernel itself runs on an NVIDIA GPU alone (benchmarks/bridge_on_gpu.py certifies it there); here JAX's own form of
the same call stands in for it where its arguments are looked at.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import detente
from detente.bridge.lower.backwards import backwards
from detente.bridge.lower.ops import flash_attention as flash
from detente.bridge.lower.ops.attention import plain


@pytest.fixture
def nvidia(monkeypatch):
    monkeypatch.setattr(flash, "_has_kernel", lambda: True)


def heads(length=256, width=64, dtype=jnp.bfloat16, count=2):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(k, (2, count, length, width), jnp.float32).astype(dtype) for k in keys]


def test_taken_for_long_half_precision_heads_of_a_training_step_and_nothing_else(nvidia, monkeypatch):
    q, k, v = heads()
    assert not flash.is_taken(q, k, v, None, 0.0, False), (
        "whoever may differentiate forwards gets the plain form"
    )
    with backwards():
        assert flash.is_taken(q, k, v, None, 0.0, False) and flash.is_taken(q, k, v, None, 0.0, True)
        assert not flash.is_taken(q, k, v, jnp.ones((256, 256), bool), 0.0, False)
        assert not flash.is_taken(q, k, v, None, 0.1, False), "cuDNN's own numbers are not those of a step"
        assert not flash.is_taken(*heads(dtype=jnp.float32), None, 0.0, False)
        assert not flash.is_taken(*heads(length=128), None, 0.0, False)
        assert not flash.is_taken(*heads(width=60), None, 0.0, False)
        assert not flash.is_taken(*heads(width=160), None, 0.0, False)
        assert not flash.is_taken(q, k[..., :32], v, None, 0.0, False)
        # torch aligns a causal mask with the first key, whatever the lengths
        assert not flash.is_taken(q, *heads(512)[1:], None, 0.0, True)
        assert flash.is_taken(q, *heads(512)[1:], None, 0.0, False)
        monkeypatch.setenv("DETENTE_KERNELS", "0")
        assert not flash.is_taken(q, k, v, None, 0.0, False)


def test_not_taken_on_a_processor_and_on_no_gpu_of_another_maker(monkeypatch):
    with backwards():
        assert not flash.is_taken(*heads(), None, 0.0, False)
    monkeypatch.setattr(flash.jax, "default_backend", lambda: "gpu")
    for capability, ours in (("9.0", True), ("8.0", True), ("7.5", False), ("gfx942", False)):
        device = type("Device", (), {"compute_capability": capability})
        monkeypatch.setattr(flash.jax, "devices", lambda device=device: [device])
        assert flash._has_kernel() is ours


@pytest.mark.parametrize(
    ("lengths", "causal"),
    [((256, 256), False), ((256, 256), True), ((197, 197), False), ((197, 197), True), ((201, 256), False),
     ((256, 201), False)],
)  # fmt: skip
def test_an_odd_length_is_one_position_more_that_nobody_sees(monkeypatch, lengths, causal):
    asked = {}

    def stand_in(q, k, v, *, implementation, **named):
        asked.update(named, implementation=implementation, shapes=(q.shape, k.shape))
        return real(q, k, v, implementation="xla", **named)

    real = jax.nn.dot_product_attention
    monkeypatch.setattr(flash.jax.nn, "dot_product_attention", stand_in)
    q, k, v = (
        t[:, :, :n]
        for t, n in zip(heads(256, dtype=jnp.float32), (lengths[0], *lengths[1:] * 2), strict=True)
    )

    def of(run):
        value, back = jax.vjp(functools.partial(run, is_causal=causal, scale=0.1), q, k, v)
        return [value, *back(jnp.cos(value))]

    def ours(q, k, v, is_causal, scale):
        return flash.flash_attention(q, k, v, is_causal, scale)

    for a, b in zip(of(ours), of(plain), strict=True):
        assert a.shape == b.shape
        assert float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) < 1e-6
    assert asked["implementation"] == "cudnn" and asked["scale"] == 0.1 and asked["is_causal"] is causal
    assert all(s[1] % 2 == 0 for s in asked["shapes"])


def test_where_cudnn_declines_the_plain_form_runs(nvidia):
    """There is no cuDNN here, and it says so; the step is what it would have been."""

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(32, 96)

        def forward(self, x):
            q, k, v = (t.view(2, 256, 2, 16).transpose(1, 2) for t in self.inside(x).chunk(3, -1))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    with backwards():
        assert flash.is_taken(*heads(width=16), None, 0.0, True)
        assert flash.flash_attention(*heads(width=16), True, 0.25) is None
    torch.manual_seed(0)
    model, batch = Attends(), torch.randn(2, 256, 32)

    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch).float().square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(model, loss, optimizer, example_batch=batch, cache=False, quiet=True)
    step(batch)
    assert step.settled().ok
