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
from detente.bridge.lower.precision import x64

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


def close(ours, theirs):
    """Every entry of ``theirs`` (torch, float64) to a relative 1e-9 of its tensor."""
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        far = np.linalg.norm(np.asarray(ours[name]) - tensor.detach().numpy())
        assert far <= 1e-9 * float(tensor.detach().norm()), f"{name}: {far:.2e}"


@pytest.fixture(scope="module")
def exact():
    """An evaluation-mode network in float64: as a module, as torch.func sees it, and as a pure JAX function."""
    model, x = Net().double().eval(), X.double()
    held = {n: p.detach() for n, p in model.named_parameters()}

    def of(params, x):
        return torch.func.functional_call(model, params, (x,)).pow(2).mean()

    return held, of, x, bridge.functional(model, loss, x), bridge.functional(model, loss, x[:1])


def test_gradients_per_example_are_those_of_torch_func(exact):
    held, of, x, _, single = exact
    with x64():
        each = jax.jit(jax.vmap(jax.grad(single), in_axes=(None, 0)))(single.params, x.numpy()[:, None])
    theirs = torch.func.vmap(torch.func.grad(of), in_dims=(None, 0))(held, x[:, None])
    assert each["first.weight"].shape == (4, 5, 3)
    close(each, theirs)


def test_gradient_through_an_inner_update_is_torchs(exact):
    held, of, x, f, _ = exact
    rate = 0.3

    def adapted(params):
        inner = jax.grad(f)(params, x.numpy())
        moved = jax.tree.map(lambda p, g: p - rate * g, params, inner)
        return f(moved, 2 * x.numpy())

    with x64():
        value, outer = jax.jit(jax.value_and_grad(adapted))(f.params)
    leaves = {n: p.clone().requires_grad_() for n, p in held.items()}
    inner = torch.autograd.grad(of(leaves, x), list(leaves.values()), create_graph=True)
    moved = {n: p - rate * g for (n, p), g in zip(leaves.items(), inner, strict=True)}
    after = of(moved, 2 * x)
    theirs = torch.autograd.grad(after, list(leaves.values()))
    assert float(value) == pytest.approx(after.item(), rel=1e-12)
    close(outer, dict(zip(leaves, theirs, strict=True)))


def test_an_ensemble_by_vmap_and_products_with_the_hessian(exact):
    held, of, x, f, _ = exact
    scales = np.array([0.5, 1.0, 2.0])
    with x64():
        members = jax.tree.map(lambda p: jnp.stack([s * p for s in scales]), f.params)
        together = jax.vmap(f, in_axes=(0, None))(members, x.numpy())
        gradient = jax.grad(lambda p: f(p, x.numpy()))
        _, product = jax.jvp(gradient, (f.params,), (f.params,))
    apart = [float(of({n: s * p for n, p in held.items()}, x)) for s in scales]
    np.testing.assert_allclose(together, apart, rtol=1e-12)
    _, theirs = torch.func.jvp(lambda p: torch.func.grad(of)(p, x), (held,), (held,))
    close(product, theirs)


class Noisy(nn.Module):
    def forward(self, x):
        return self.scale * nn.functional.dropout(x, 0.5)

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


def test_vmap_over_keys_draws_one_mask_per_key():
    x = torch.ones(64)
    f = bridge.functional(Noisy(), lambda m, b: (m(b).sum(), m(b)), x)
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 3)
    _, (masks, _) = jax.vmap(lambda key: f.apply(f.params, x.numpy(), key=key))(keys)
    alone = [f.apply(f.params, x.numpy(), key=key)[1][0] for key in keys]
    assert np.array_equal(masks, np.stack(alone))
    assert len({m.tobytes() for m in np.asarray(masks)}) == 3
    assert set(np.unique(masks)) == {0.0, 2.0}


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


def test_gradient_penalty():
    """What a loss cannot ask of torch inside a step: a gradient that is differentiated again."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    f = bridge.functional(net, lambda m, b: m(b).sum(), x)

    def penalty(params, x):
        slope = jax.grad(lambda inner: f(params, inner))(x)
        return ((jnp.linalg.norm(slope, axis=1) - 1) ** 2).mean()

    found = jax.jit(jax.grad(penalty))(f.params, x.numpy())
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(leaf).sum(), leaf, create_graph=True)
    ((slope.norm(dim=1) - 1) ** 2).mean().backward()
    for name, parameter in net.named_parameters():
        theirs = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        np.testing.assert_allclose(found[name], theirs.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("what", ["missing", "unknown", "unknown buffer", "missing buffer"])
def test_names_that_do_not_fit_are_refused_by_name(made, what):
    _, f = made
    params, buffers, name = dict(f.params), dict(f.buffers), "first.weight"
    if what == "missing":
        del params[name]
    elif what == "unknown":
        name = "frist.weight"
        params[name] = params["first.weight"]
    elif what == "unknown buffer":
        name = "norm.mean"
        buffers[name] = buffers["norm.running_mean"]
    else:
        name = "norm.running_var"
        del buffers[name]
    with pytest.raises(bridge.Refused, match=name):
        jax.jit(lambda p, b: f(p, X.numpy(), buffers=b))(params, buffers)
    with pytest.raises(bridge.Refused, match=name):
        f.state_dict(params, buffers)


def test_a_parameter_may_be_held_among_the_buffers(made):
    _, f = made
    trained = {"last.bias": f.params["last.bias"]}
    held = {**f.buffers, **{n: v for n, v in f.params.items() if n not in trained}}
    gradient = jax.grad(lambda p: f(p, X.numpy(), buffers=held))(trained)
    assert set(gradient) == {"last.bias"}
    np.testing.assert_allclose(
        gradient["last.bias"], jax.grad(f)(f.params, X.numpy())["last.bias"], rtol=1e-6
    )
