"""Lowered loops against the same programs written out: values, gradients, random numbers, fault words."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import repeat_programs as programs
from hypothesis import HealthCheck, given, settings

from detente.bridge.graph import Graph
from detente.bridge.lower.driver import Trace, evaluate
from detente.bridge.lower.faults import NO_FAULT, Sites
from detente.bridge.lower.precision import x64
from detente.bridge.lower.table import TABLE, lowers
from detente.bridge.roll.find import Least
from detente.bridge.roll.fold import ROLL, roll
from detente.bridge.roll.lower import REMATS, with_remat
from detente.bridge.roll.stacks import stacked

if "test.random" not in TABLE:

    @lowers("test.random", random=True)
    def _random(call: Any, x: jax.Array) -> jax.Array:
        return x + jax.random.uniform(call.key(), x.shape, x.dtype)

    @lowers("test.both")
    def _both(call: Any, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jnp.cos(pair[0]) - pair[1], pair[0] * 0.5

    @lowers("test.faulty")
    def _faulty(call: Any, x: jax.Array, limit: jax.Array) -> jax.Array:
        call.fault(x > limit, "IndexError: too large")
        return x + 1.0


def value_and_gradients(graph: Graph, arrays: dict[int, jax.Array]) -> tuple[Any, Any]:
    """All outputs, and the gradient of their sum for every input."""

    def total(arrays: dict[int, jax.Array]) -> tuple[jax.Array, Any]:
        outputs = evaluate(graph, arrays, Trace(Sites(), jax.random.key(7)))
        return sum((jnp.sum(o) for o in outputs), start=jnp.float64(0)), outputs

    (_, outputs), gradients = jax.value_and_grad(total, has_aux=True)(arrays)
    return outputs, gradients


def assert_same(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@given(programs.graphs())
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_loops_compute_values_and_gradients_of_the_written_out_program(graph: Graph) -> None:
    with x64():
        arrays = {i.id: jnp.asarray(v) for i, v in zip(graph.inputs, programs.values_for(graph), strict=True)}
        expected = value_and_gradients(graph, arrays)
        assert_same(value_and_gradients(roll(graph, Least(nodes=1, saved=1)), arrays), expected)


OWN = programs.Call("aten.mul.Tensor", (0,), source="own")
SIN = programs.Call("aten.sin.default", (0,))
RANDOM = programs.Call("test.random", (0,))
SCALED = programs.Call("aten.mul.Scalar", (0,), (0.5, 0.1))
RESIDUAL = programs.Call("aten.add.Tensor", (0, 4))


def layers(count: int = 5, *extra: Any) -> Graph:
    builder = programs._Builder()
    builder.emit(programs.Repeated(count, (OWN, RANDOM, SCALED, *extra, RESIDUAL)))
    return builder.graph([-6])


@pytest.mark.parametrize("remat", [None, *REMATS])
@pytest.mark.parametrize("unroll", [1, 2])
def test_every_remat_policy_computes_the_same(remat: str | None, unroll: int) -> None:
    graph = layers()
    rolled = with_remat(roll(graph, Least(nodes=1, saved=1)), remat, unroll)
    assert [n.op for n in rolled.nodes].count(ROLL) == 1
    with x64():
        arrays = {i.id: jnp.asarray(v) for i, v in zip(graph.inputs, programs.values_for(graph), strict=True)}
        assert_same(value_and_gradients(rolled, arrays), value_and_gradients(graph, arrays))


def test_full_remat_keeps_nothing_but_the_carries() -> None:
    def saved(remat: str | None) -> int:
        graph = with_remat(roll(layers(40, SIN, SIN), Least(nodes=3, saved=1)), remat)
        with x64():
            arrays = {
                i.id: jnp.asarray(v) for i, v in zip(graph.inputs, programs.values_for(graph), strict=True)
            }
            jaxpr = jax.make_jaxpr(lambda a: value_and_gradients(graph, a))(arrays)
        forward = next(e for e in jaxpr.eqns if e.primitive.name == "scan")
        return len([v for v in forward.outvars if v.aval.shape[:1] == (40,)])

    assert saved("full") < saved(None)


def test_stacked_parameters_are_one_input_with_the_same_gradients() -> None:
    graph = roll(layers(), Least(nodes=1, saved=1))
    slim, stacks = stacked(graph)
    (row,) = stacks.rows
    assert len(row.members) == 5
    assert len(slim.inputs) == len(graph.inputs) - 4
    with x64():
        values = dict(
            zip((i.name for i in graph.inputs), map(jnp.asarray, programs.values_for(graph)), strict=True)
        )
        joined = stacks.join(values, jnp.stack)
        outputs, gradients = value_and_gradients(graph, {i.id: values[i.name] for i in graph.inputs})
        outputs2, gradients2 = value_and_gradients(slim, {i.id: joined[i.name] for i in slim.inputs})
        assert_same(outputs2, outputs)
        by_name = {i.name: gradients2[i.id] for i in slim.inputs}
        split = stacks.split(by_name)
        assert_same([split[i.name] for i in graph.inputs], [gradients[i.id] for i in graph.inputs])


def test_a_fault_inside_a_loop_is_the_fault_word_of_the_program() -> None:
    faulty = programs.Call("test.faulty", (1, 0))
    graph = layers(5, faulty)
    rolled = roll(graph, Least(nodes=1, saved=1))
    assert any(n.op == ROLL for n in rolled.nodes)
    with x64():
        arrays = {i.id: jnp.asarray(v) for i, v in zip(graph.inputs, programs.values_for(graph), strict=True)}
        words = []
        for form in (graph, rolled):
            trace = Trace(Sites(), jax.random.key(7))
            evaluate(form, arrays, trace)
            words.append(int(trace.word()))
        assert words[0] == words[1] != NO_FAULT
