"""An optax chain on an unmodified torch ResNet block equals the run written by hand in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from jax import lax
from torch import nn

from detente.bridge.capture.capture import capture
from detente.bridge.lower.precision import torch_numerics
from detente.bridge.optim.optax_rule import OptaxRule
from detente.bridge.program.program import Program


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        x = x + self.second(torch.relu(x))
        return self.head(x.mean((2, 3)))


def by_hand(params, batch):
    x, y = batch

    def conv(x, name):
        out = lax.conv_general_dilated(x, params[f"{name}.weight"], (1, 1), "SAME")
        return out + params[f"{name}.bias"][None, :, None, None]

    x = conv(x, "first")
    x = x + conv(jax.nn.relu(x), "second")
    logits = x.mean((2, 3)) @ params["head.weight"].T + params["head.bias"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


def test_a_chain_equals_the_hand_written_run():
    torch.manual_seed(0)
    model = Residual().double()
    batch = (torch.randn(4, 3, 6, 6).double(), torch.randint(0, 4, (4,)))
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2), optax.ema(0.999))
    program = Program(capture(model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), batch).graph)
    leaves = [leaf.numpy() for leaf in batch]
    with torch_numerics():
        start = {k: jnp.asarray(v.detach().numpy()) for k, v in model.named_parameters()}
        rule = OptaxRule(chain, tuple(start))
        gradients = program.gradients(program.connected)

        @jax.jit
        def ours(params, state):
            (loss, _), grads = gradients(params, leaves, None)
            return loss, *rule.apply(params, grads, state)

        @jax.jit
        def theirs(params, state):
            loss, grads = jax.value_and_grad(by_hand)(params, leaves)
            updates, state = chain.update(grads, state, params)
            return loss, optax.apply_updates(params, updates), state

        mine, my_state, plain, its_state = start, rule.init(start), start, chain.init(start)
        for _ in range(5):
            a, mine, my_state = ours(mine, my_state)
            b, plain, its_state = theirs(plain, its_state)
            assert abs(float(a) - float(b)) <= 1e-12
    for name in start:
        np.testing.assert_allclose(mine[name], plain[name], rtol=1e-9, atol=1e-12)


def test_frozen_parameters_stay():
    rule = OptaxRule(optax.sgd(0.5), ("a",))
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    new, _ = rule.apply(params, {"a": jnp.ones(2), "b": jnp.ones(2)}, rule.init(params))
    assert list(new["a"]) == [0.5, 0.5]
    assert list(new["b"]) == [1.0, 1.0]


def test_what_cannot_work_says_so():
    with pytest.raises(TypeError, match=r"not SGD; torch optimizers go through detente\.compile"):
        OptaxRule(torch.optim.SGD([torch.zeros(1)], lr=0.1), ("a",))
    rule = OptaxRule(optax.sgd(0.5), ("a",))
    with pytest.raises(KeyError, match="no gradient for a"):
        rule.apply({"a": jnp.ones(2)}, {"a": None}, rule.init({"a": jnp.ones(2)}))
