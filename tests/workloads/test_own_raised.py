"""A user's model in float64 narrows nothing, whatever it asks for; in float32 it is what it was."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from detente.workloads.own.raised import Raised, backward


def narrowing(x: torch.Tensor) -> torch.Tensor:
    shares = torch.softmax(x @ x.T, -1, dtype=torch.float32).to(x.dtype)
    norm = x.float() * torch.rsqrt(x.to(torch.float32).square().mean(-1, keepdim=True) + 1e-6)
    turn = (
        torch.arange(4, dtype=torch.float32).cos()
        + x.half().sum()
        + x.type(torch.bfloat16).sum(dtype=torch.float)
    )
    return (shares @ norm.to(x.dtype) * turn).sum()


def plain(x: torch.Tensor) -> torch.Tensor:
    shares = torch.softmax(x @ x.T, -1)
    norm = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    turn = torch.arange(4, dtype=torch.float64).cos() + 2 * x.sum()
    return (shares @ norm * turn).sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_torch_narrows_nothing(compiled: bool) -> None:
    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def run(x: torch.Tensor) -> torch.Tensor:
        with Raised():
            return narrowing(x)

    found = (torch.compile(run, fullgraph=True, backend="aot_eager") if compiled else run)(x)
    wanted = plain(x)
    torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-13)
    torch.testing.assert_close(
        *(torch.autograd.grad(v, x)[0] for v in (found, wanted)), rtol=1e-12, atol=1e-12
    )
    assert abs(narrowing(x) - wanted) > 1e-9  # it does narrow


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_raised_too(reentrant: bool) -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)

    one, two = (torch.arange(12.0, dtype=torch.float64).reshape(3, 4).requires_grad_() for _ in range(2))
    with Raised():
        loss = torch.utils.checkpoint.checkpoint(norm, one.sin(), use_reentrant=reentrant).sum()
    backward(loss)
    x = two.sin()
    (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).sum().backward()
    torch.testing.assert_close(one.grad, two.grad, rtol=1e-13, atol=1e-14)


def test_what_is_made_in_the_default_dtype_is_wide() -> None:
    with Raised():
        third = torch.full((), 1 / 3)
        many = torch.linspace(0, 1, 7), torch.tensor([0.1, 0.2]), torch.arange(0, 1, 0.1), torch.zeros(2)
        assert torch.arange(3).dtype is torch.int64 and torch.tensor([True]).dtype is torch.bool
    assert float(third) == 1 / 3 and float(many[1][0]) == 0.1
    assert {t.dtype for t in (third, *many)} == {torch.float64}


def test_a_cast_of_a_module_is_raised_too() -> None:
    x = torch.rand(2, 3, dtype=torch.float64)
    layer = nn.Linear(3, 3).double()
    with Raised():
        assert layer(x).to(torch.float32).dtype is torch.float64
        assert torch.zeros(2, dtype=torch.complex64).dtype is torch.complex128
        assert torch.ones(2, dtype=torch.int32).dtype is torch.int32


JAX = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from detente.workloads.own.jax_models.raised import raised
F32, B16 = np.dtype("float32"), jnp.dtype("bfloat16")  # what no name of jax.numpy tells

def norm(x):
    return x.astype(F32) * jax.lax.rsqrt(jnp.square(x.astype(F32)).mean(-1, keepdims=True) + 1e-6)

def narrowing(x, n):
    shares = jax.nn.softmax((x @ x.T).astype(F32)).astype(x.dtype)   # jax.custom_jvp
    y = jax.jit(lambda a: norm(a).astype(a.dtype))(shares @ x)
    y = jax.checkpoint(lambda a: jnp.tanh(a.astype(B16)).astype(a.dtype))(y)
    def body(carry, row):
        carry = carry + (row.astype(F32) * n).astype(row.dtype)
        return carry, carry.astype(F32)
    total, each = jax.lax.scan(body, jnp.zeros(x.shape[1], x.dtype), y)
    total = jax.lax.cond(n > 1, lambda t: t.astype(F32), lambda t: (2 * t).astype(F32), total)
    total = total + jnp.dot(x, x, preferred_element_type=F32).sum(0) + jnp.arange(4, dtype=F32)
    return total.sum() + each.sum() * 0.5, (each, n)

def plain(x, n):
    shares = jax.nn.softmax(x @ x.T)
    y = shares @ x
    y = jnp.tanh(y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6))
    each = jnp.cumsum(y * n, 0)
    return each[-1].sum() + (x @ x).sum() + 6 + each.sum() * 0.5, (each, n)

x, n = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4))), jnp.asarray(3)
for transform in (lambda f: f, jax.jit):
    found = transform(jax.value_and_grad(raised(narrowing), has_aux=True))(x, n)
    wanted = jax.value_and_grad(plain, has_aux=True)(x, n)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype and np.allclose(a, b, rtol=1e-12, atol=1e-12), (a, b)
assert abs(narrowing(x, n)[0] - plain(x, n)[0]) > 1e-9   # it does narrow
q = x.reshape(1, 2, 2, 4)
attend = lambda q: jax.nn.dot_product_attention(q, q, q)
scores = jnp.einsum("bqhd,bkhd->bhqk", q, q) / 2
wide = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), q)
assert np.allclose(raised(attend)(q), wide, rtol=1e-13, atol=1e-14)
assert not np.allclose(attend(q), wide, rtol=1e-13, atol=1e-14)

# A constant behind a cast is not rounded; the names are put back.
c = lambda x: (x.astype(jnp.float32) * 0.1).sum() + (x.astype("float32") * 0.5).sum()
assert abs(raised(c)(x) - x.sum() * 0.6) < 1e-13 and jnp.float32(1).dtype == np.float32
# What knows its dtypes is left as it is.
@jax.custom_vjp
def own(x):
    return x * 2
own.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 3,))
f = lambda x: own(x.astype("float32")).sum()
assert raised(f)(x) == f(x) and np.array_equal(jax.grad(raised(f))(x), jax.grad(f)(x))
# A custom derivative that nothing narrow meets keeps its rule beside what is raised.
g = lambda x: own(x).sum() + x.astype("float32").sum()
assert np.array_equal(jax.grad(raised(g))(x), np.full((4, 4), 4.0))
# So does relu's, whose derivative at 0 is 0 and not a half.
r = lambda x: jax.nn.relu(x - x).sum() + x.astype("float32").sum()
assert np.array_equal(jax.grad(raised(r))(x), np.ones((4, 4)))
# Draws are what they were.
d = lambda x: (x.astype(F32) + jax.random.normal(jax.random.key(0), (4, 4), F32)).sum()
assert abs(raised(d)(x) - d(x)) < 1e-5
whole = lambda x: (x * 2).sum()
assert raised(whole)(x) == whole(x)
print("raised")
"""


@pytest.mark.long
def test_jax_narrows_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", JAX], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "raised", done.stderr
