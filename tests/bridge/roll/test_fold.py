"""Rolling and unrolling random nested repeats changes nothing, and known programs roll as a person would."""

from __future__ import annotations

import numpy as np
import repeat_programs as programs
from hypothesis import given, settings
from unroll import unroll

from detente.bridge.graph import Graph
from detente.bridge.roll.find import Least
from detente.bridge.roll.fold import ROLL, roll


def loops(graph: Graph) -> list[tuple[int, int, list]]:
    """(count, nodes of the body, loops inside) of every roll node."""
    return [(n.args[1], len(n.args[0].nodes), loops(n.args[0])) for n in graph.nodes if n.op == ROLL]


@given(programs.graphs())
@settings(max_examples=300, deadline=None)
def test_rolled_and_unrolled_compute_exactly_what_the_graph_computes(graph: Graph) -> None:
    args = programs.values_for(graph)
    expected = programs.interpret(graph, args)
    rolled = roll(graph, Least(nodes=1, saved=1))
    for form in (rolled, unroll(rolled)):
        for got, want in zip(programs.interpret(form, args), expected, strict=True):
            np.testing.assert_array_equal(got, want)


@given(programs.graphs())
@settings(max_examples=100, deadline=None)
def test_unrolling_gives_back_every_node_and_ordinal(graph: Graph) -> None:
    back = unroll(roll(graph, Least(nodes=1, saved=1)))
    assert [(n.op, n.draw, n.out) for n in back.nodes] == [(n.op, n.draw, n.out) for n in graph.nodes]


@given(programs.graphs())
@settings(max_examples=50, deadline=None)
def test_the_same_graph_always_rolls_alike(graph: Graph) -> None:
    assert roll(graph, Least(nodes=1, saved=1)) == roll(graph, Least(nodes=1, saved=1))


def build(*items) -> Graph:
    builder = programs._Builder()
    for item in items:
        builder.emit(item)
    return builder.graph([])


SIN = programs.Call("aten.sin.default", (0,))
OWN = programs.Call("aten.mul.Tensor", (0,), source="own")
RANDOM = programs.Call("test.random", (0,))
RESIDUAL = programs.Call("aten.add.Tensor", (0, 3))


def test_a_stack_of_layers_is_one_loop_with_one_carry() -> None:
    rolled = roll(build(programs.Repeated(12, (OWN, SIN, RANDOM, RESIDUAL))), Least(nodes=1, saved=1))
    (node,) = [n for n in rolled.nodes if n.op == ROLL]
    body, count, carries, stacked, _ = node.args
    assert count == 12
    assert (len(body.nodes), len(carries), len(stacked)) == (4, 1, 1)
    assert dict(node.kwargs)["draws"] == 1
    assert body.nodes[0].scope == "layer.*"


def test_repeats_inside_repeats_are_loops_inside_loops() -> None:
    stage = programs.Repeated(3, (OWN, SIN, RESIDUAL))
    rolled = roll(build(programs.Repeated(4, (RANDOM, stage))), Least(nodes=1, saved=1))
    assert loops(rolled) == [(4, 2, [(3, 3, [])])]


def test_encoder_and_decoder_are_two_loops() -> None:
    encoder = programs.Repeated(4, (OWN, SIN, RESIDUAL))
    decoder = programs.Repeated(3, (OWN, RANDOM, RANDOM, OWN))
    assert [c for c, _, _ in loops(roll(build(encoder, SIN, decoder), Least(nodes=3, saved=1)))] == [4, 3]


def test_a_first_layer_that_differs_is_peeled() -> None:
    first = (OWN, SIN, SIN, RESIDUAL)
    rolled = roll(build(*first, programs.Repeated(5, (OWN, SIN, RANDOM, RESIDUAL))), Least(nodes=3, saved=1))
    assert [c for c, _, _ in loops(rolled)] == [5]


def chain(count: int, *calls) -> Graph:
    return build(programs.Repeated(count, calls))


def test_thin_layers_are_a_loop_when_there_are_many_with_weights_of_their_own() -> None:
    assert loops(roll(chain(12, OWN, SIN))) == [(12, 2, [])]
    assert loops(roll(chain(40, OWN, SIN))) == [(40, 2, [])]  # not twenty of two layers
    assert loops(roll(chain(8, OWN))) == [(8, 1, [])]


def test_a_few_thin_layers_and_operators_without_weights_are_not() -> None:
    shared = programs.Call("aten.mul.Tensor", (0,), source="shared")
    for graph in (chain(7, OWN, SIN), chain(12, SIN), chain(12, shared, SIN)):
        assert loops(roll(graph)) == []


def test_projections_of_one_tensor_are_not_layers() -> None:
    # each reads the same value: nothing goes from one to the next
    items = [programs.Call("aten.mul.Tensor", (k,), source="own") for k in range(10)]
    assert loops(roll(build(SIN, *items))) == []


def test_a_scalar_that_differs_by_layer_is_stacked() -> None:
    scaled = programs.Call("aten.mul.Scalar", (0,), (0.5, 0.1))
    rolled = roll(build(programs.Repeated(5, (OWN, scaled, SIN))), Least(nodes=1, saved=1))
    (node,) = [n for n in rolled.nodes if n.op == ROLL]
    assert [i.kind for i in node.args[0].inputs] == ["carry", "stacked", "scalar"]
    assert node.args[3][1] == tuple(0.5 + k * 0.1 for k in range(5))
