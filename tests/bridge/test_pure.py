"""``detente.functional``: the torch module under JAX's own transformations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

from detente import bridge

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def loss(model, batch):
    return model(batch).pow(2).mean()


@pytest.fixture(scope="module")
def made():
    model = Net()
    return model, bridge.functional(model, loss, X)


def test_grad_is_torchs(made):
    model, f = made
    gradient = jax.jit(jax.grad(f))(f.params, X.numpy())
    loss(model, X).backward()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(gradient[name], parameter.grad, rtol=2e-5, atol=1e-7)


def test_gradients_per_example_and_through_an_update():
    model = Net().eval()
    f = bridge.functional(model, loss, X[:1])
    each = jax.vmap(jax.grad(f), in_axes=(None, 0))(f.params, jnp.asarray(X.numpy())[:, None])
    assert each["first.weight"].shape == (4, 5, 3)
    whole = bridge.functional(model, loss, X)
    mean = jax.tree.map(lambda g: g.mean(0), each)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7),
        mean,
        jax.grad(whole)(whole.params, X.numpy()),
    )

    def after_a_step(rate):
        moved = jax.tree.map(
            lambda p, g: p - rate * g, whole.params, jax.grad(whole)(whole.params, X.numpy())
        )
        return whole(moved, X.numpy())

    slope = jax.grad(after_a_step)(0.1)
    numeric = (after_a_step(0.1 + 1e-2) - after_a_step(0.1 - 1e-2)) / 2e-2
    assert float(slope) == pytest.approx(float(numeric), rel=1e-2)


def test_optax_trains_it_and_the_buffers_move(made):
    _, f = made
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2), optax.ema(0.999))
    state = chain.init(f.params)

    @jax.jit
    def step(params, buffers, state):
        (value, (_, buffers)), gradient = jax.value_and_grad(f.apply, has_aux=True)(
            params, X.numpy(), buffers=buffers
        )
        updates, state = chain.update(gradient, state, params)
        return optax.apply_updates(params, updates), buffers, state, value

    params, buffers, values = f.params, f.buffers, []
    for _ in range(30):
        params, buffers, state, value = step(params, buffers, state)
        values.append(float(value))
    assert values[-1] < values[0]
    assert int(buffers["norm.num_batches_tracked"]) == 30
    back = Net()
    back.load_state_dict(f.state_dict(params, buffers))
    assert float(loss(back, X)) == pytest.approx(float(f(params, X.numpy())), rel=1e-5)


def test_another_shape_is_refused(made):
    _, f = made
    with pytest.raises(bridge.Refused, match=r"float32\[2, 3\].*captured with float32\[4, 3\]"):
        f(f.params, X.numpy()[:2])
