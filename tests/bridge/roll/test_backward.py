"""Updating inside the backward loop gives the parameters that gradients first and updates afterwards give."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import repeat_programs as programs
import test_roll_lower as lowered
from hypothesis import HealthCheck, given, settings

from detente.bridge.graph import Graph
from detente.bridge.lower.driver import Trace, evaluate
from detente.bridge.lower.faults import Sites
from detente.bridge.lower.precision import x64
from detente.bridge.roll import backward
from detente.bridge.roll.find import Least
from detente.bridge.roll.fold import roll
from detente.bridge.roll.stacks import stacked
from detente.workloads.own.jax_models.scanned import cut


def momentum(name: str, row: Any, param: Any, grad: Any, state: Any) -> tuple[Any, Any]:
    """SGD with momentum and a decay that makes the update depend on the parameter's own value."""
    fresh = 0.9 * state + grad + 0.01 * param
    return param - 0.1 * fresh, fresh


def afterwards(graph: Graph, values: dict[int, Any], state: dict[str, Any]) -> tuple[Any, Any, Any]:
    trainable = {i.id: i.name for i in graph.inputs if i.trainable}

    def loss(params: dict[int, Any]) -> tuple[Any, Any]:
        outputs = evaluate(graph, {**values, **params}, Trace(Sites(), jax.random.key(7)))
        return jnp.sum(outputs[0]), outputs

    gradients, outputs = jax.grad(loss, has_aux=True)({i: values[i] for i in trainable})
    new = {name: momentum(name, None, values[i], gradients[i], state[name]) for i, name in trainable.items()}
    return outputs, {n: p for n, (p, _) in new.items()}, {n: s for n, (_, s) in new.items()}


def check(graph: Graph) -> backward.Updated:
    slim, _ = stacked(roll(graph, Least(nodes=1, saved=1)))
    with x64():
        rng = np.random.default_rng(1)
        values = {i.id: jnp.asarray(rng.uniform(0.5, 1.5, i.aval.shape)) for i in slim.inputs}
        state = {i.name: 0.1 * values[i.id] for i in slim.inputs if i.trainable}
        outputs, params, states = afterwards(slim, values, state)
        got = backward.step(slim, values, state, momentum, Trace(Sites(), jax.random.key(7)))
        lowered.assert_same(got.outputs, outputs)
        for name, value in params.items():
            # a parameter that the loss does not reach has no gradient, and torch leaves it alone
            if name in got.params:
                lowered.assert_same((got.params[name], got.state[name]), (value, states[name]))
            else:
                lowered.assert_same(value, momentum(name, None, *_still(slim, values, state, name))[0])
    return got


def _still(graph: Graph, values: Any, state: Any, name: str) -> tuple[Any, Any, Any]:
    param = next(values[i.id] for i in graph.inputs if i.name == name)
    return param, jnp.zeros_like(param), state[name]


@given(programs.graphs())
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs_are_updated_alike(graph: Graph) -> None:
    check(graph)


def test_layers_with_random_numbers_and_outer_parameters() -> None:
    builder = programs._Builder()
    shared = programs.Call("aten.mul.Tensor", (0,), source="shared")
    own, random = programs.Call("aten.mul.Tensor", (0,), source="own"), programs.Call("test.random", (0,))
    residual = programs.Call("aten.add.Tensor", (0, 3))
    builder.emit(own)
    builder.emit(programs.Repeated(6, (own, random, shared, residual)))
    builder.emit(own)
    builder.emit(programs.Repeated(4, (shared, own, own, random, residual)))
    graph = builder.graph([-8])
    got = check(graph)
    assert {n for n in got.params if "-" in n}  # stacks, updated in their loops
    assert "shared" in got.params  # read by every layer of both loops: its whole gradient is summed up first


def test_gradients_of_the_whole_stack_never_exist() -> None:
    graph = lowered.layers(40)
    slim, _ = stacked(roll(graph, Least(nodes=1, saved=1)))
    assert backward.loops_updated(slim)
    with x64():
        values = {i.id: jnp.ones(i.aval.shape) for i in slim.inputs}
        state = {i.name: values[i.id] for i in slim.inputs if i.trainable}

        def step(values: Any, state: Any) -> Any:
            done = backward.step(slim, values, state, momentum, Trace(Sites(), jax.random.key(7)))
            return done.params, done.state

        jaxpr = jax.make_jaxpr(step)(values, state)
    behind = [e for e in jaxpr.eqns if e.primitive.name == "scan" and e.params["reverse"]]
    (loop,) = behind
    carried = cut(loop)[1]
    assert not [v for v in loop.outvars[carried:] if v.aval.shape[:1] == (40,)]


@pytest.mark.parametrize("mark", ["checkpoint", "no_grad"])
def test_loops_inside_a_region_are_left_to_the_ordinary_form(mark: str) -> None:
    from dataclasses import replace

    graph = lowered.layers()
    nodes = tuple(replace(n, marks=((mark, 0) if mark == "checkpoint" else (mark,),)) for n in graph.nodes)
    slim, _ = stacked(roll(replace(graph, nodes=nodes), Least(nodes=1, saved=1)))
    if mark == "checkpoint":
        assert not backward.loops_updated(slim)
    else:
        check(replace(graph, nodes=nodes))
