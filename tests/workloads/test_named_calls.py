"""Modules of JAX's libraries name what they compute, where a capture asks for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from detente.programs.count import read_program
from detente.programs.parts import coverage, parts, sites
from detente.workloads import named_calls, names_asked
from detente.workloads.named_calls import equinox_tree, nnx_tree
from detente.workloads.named_calls import named_calls as naming


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up, self.down = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jnp.tanh(self.up(x)))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([Layer(rngs), Layer(rngs)])
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def found(function, *args) -> dict[tuple[str, str], int]:
    data = jax.jit(function).lower(*args).compiler_ir("hlo").as_serialized_hlo_module_proto()
    module = read_program(data, "hlo")
    assert coverage(sites(module))["none"] == 0
    return {(p.path, p.direction): facts.flops for p, facts in parts(sites(module)).items()}


def loss_of(tree):
    def loss(model, x):
        with jax.named_scope("root"), naming(jax.named_scope, model, tree):
            return jnp.sum(model(x) ** 2)

    return loss


def test_a_module_of_nnx_is_named_in_both_directions() -> None:
    model = Model(nnx.Rngs(0))
    graph, state = nnx.split(model)

    def step(state, x):
        return jax.grad(lambda s: loss_of(nnx_tree(nnx))(nnx.merge(graph, s), x))(state)

    table = found(step, state, jnp.ones((3, 4)))
    assert table["layers.0.up", "forward"] == table["layers.1.up", "forward"] == 2 * 3 * 4 * 8
    # The gradient of the weights, and of what flows on; the first layer's input needs none.
    assert table["layers.1.up", "backward"] == 2 * table["layers.0.up", "backward"] == 4 * 3 * 4 * 8
    assert ("root", "forward") in table


class Edsr(nnx.Module):
    """Modules under names that control flow has, and our own scopes."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.body = nnx.List([Layer(rngs), Layer(rngs)])
        self.cond, self.root, self.checkpoint = (nnx.Linear(4, 4, rngs=rngs) for _ in range(3))
        self.optimizer = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        for layer in self.body:
            x = layer(x)
        return self.optimizer(self.checkpoint(self.root(self.cond(x))))


def test_a_module_is_named_whatever_it_is_called() -> None:
    graph, state = nnx.split(Edsr(nnx.Rngs(0)))

    def step(state, x):
        return jax.grad(lambda s: loss_of(nnx_tree(nnx))(nnx.merge(graph, s), x))(state)

    table = found(step, state, jnp.ones((3, 4)))
    for name in ("body.0.up", "body.1.down", "cond", "root", "checkpoint", "optimizer"):
        assert table[name, "forward"] > 0 and table[name, "backward"] > 0, name


def test_calls_are_what_they_were_afterwards() -> None:
    model, before = Model(nnx.Rngs(0)), Layer.__call__
    with pytest.raises(AttributeError), naming(jax.named_scope, model, nnx_tree(nnx)):
        assert Layer.__call__ is not before
        model(None)
    assert Layer.__call__ is before and nnx.Linear.__call__.__qualname__ == "Linear.__call__"


def test_layers_under_a_scan_are_named_once() -> None:
    @nnx.vmap(in_axes=0, out_axes=0)
    def made(rngs):
        return Layer(rngs)

    class Scanned(nnx.Module):
        def __init__(self) -> None:
            self.layers = made(nnx.Rngs(0).split(3))
            self.head = nnx.Linear(4, 2, rngs=nnx.Rngs(0))

        def __call__(self, x):
            one = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return self.head(one(x, self.layers))

    model = Scanned()
    graph, state = nnx.split(model)
    table = found(lambda s, x: loss_of(nnx_tree(nnx))(nnx.merge(graph, s), x), state, jnp.ones((3, 4)))
    assert table["layers.up", "forward"] == 3 * 2 * 3 * 4 * 8
    assert table["head", "forward"] == 2 * 3 * 4 * 2


def test_a_module_of_equinox_is_named() -> None:
    equinox = pytest.importorskip("equinox")

    class Net(equinox.Module):
        layers: list
        act: object

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.layers = [equinox.nn.Linear(4, 8, key=a), equinox.nn.Linear(8, 2, key=b)]
            self.act = jnp.tanh

        def __call__(self, x):
            return self.layers[1](self.act(self.layers[0](x)))

    def loss(model, x):
        with jax.named_scope("root"), naming(jax.named_scope, model, equinox_tree(equinox)):
            return jnp.sum(jax.vmap(model)(x))

    arrays, rest = equinox.partition(Net(jax.random.key(0)), equinox.is_array)
    table = found(lambda a, x: loss(equinox.combine(a, rest), x), arrays, jnp.ones((3, 4)))
    paths = {path for path, _ in table}
    assert any("layers.0" in p for p in paths) and any("layers.1" in p for p in paths), paths


def test_nothing_is_named_that_nobody_asked_for(monkeypatch) -> None:
    monkeypatch.setattr(names_asked, "_ASKED", [False])
    before = Layer.__call__
    with named_calls.named_nnx(Model(nnx.Rngs(0))):
        assert Layer.__call__ is before
    names_asked.ask_for_names()
    with named_calls.named_nnx(Model(nnx.Rngs(0))):
        assert Layer.__call__ is not before
