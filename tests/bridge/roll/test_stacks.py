"""Names and buffers of stacked state."""

from __future__ import annotations

import pytest

from detente.bridge.graph import Aval, Graph, Input, Node, Output, Ref
from detente.bridge.roll.find import Least
from detente.bridge.roll.fold import ROLL, roll
from detente.bridge.roll.stacks import Stack, Stacks, merged_name, stacked

AVAL = Aval((2,), "float32")


def running(layers: int, written: int) -> Graph:
    """Layers that each own a weight and a running buffer, the first ``written`` of them written back."""
    inputs, nodes, outputs = [Input(0, "batch", "x", AVAL)], [], []
    value, fresh = Ref(0), 1
    for k in range(layers):
        inputs.append(Input(fresh, "parameter", f"h.{k}.weight", AVAL, True))
        inputs.append(Input(fresh + 1, "buffer", f"h.{k}.mean", AVAL))
        nodes.append(Node(fresh + 2, "aten.mul.Tensor", (value, Ref(fresh)), (), AVAL))
        nodes.append(Node(fresh + 3, "aten.add.Tensor", (Ref(fresh + 1), Ref(fresh + 2)), (), AVAL))
        if k < written:
            outputs.append(Output("buffer", f"h.{k}.mean", Ref(fresh + 3)))
        value, fresh = Ref(fresh + 2), fresh + 4
    return Graph(tuple(inputs), tuple(nodes), (Output("loss", "", value), *outputs))


def test_running_buffers_are_read_and_written_stacked() -> None:
    slim, stacks = stacked(roll(running(4, 4), Least(nodes=1, saved=1)))
    assert {s.name for s in stacks.rows} == {"h.0-3.weight", "h.0-3.mean"}
    (node,) = slim.nodes
    assert node.op == ROLL
    assert [o.name for o in slim.outputs] == ["", "h.0-3.mean"]
    assert slim.outputs[1].value == Ref(node.id, 1)


def test_buffers_that_some_layers_alone_write_stay_apart() -> None:
    slim, stacks = stacked(roll(running(4, 2), Least(nodes=1, saved=1)))
    assert {s.name for s in stacks.rows} == {"h.0-3.weight"}
    assert [o.name for o in slim.outputs] == ["", "h.0.mean", "h.1.mean"]


def test_parameters_of_different_groups_are_not_stacked() -> None:
    _, stacks = stacked(roll(running(4, 4), Least(nodes=1, saved=1)), alike=lambda name: name == "h.2.weight")
    assert {s.name for s in stacks.rows} == {"h.0-3.mean"}


def test_a_frozen_layer_ends_the_loop() -> None:
    graph = running(6, 6)
    frozen = tuple(
        Input(i.id, i.kind, i.name, i.aval, i.trainable and not i.name.startswith(("h.0.", "h.1.")))
        for i in graph.inputs
    )
    _, stacks = stacked(roll(Graph(frozen, graph.nodes, graph.outputs), Least(nodes=1, saved=1)))
    assert [s.name for s in stacks.rows if s.name.endswith("weight")] == ["h.2-5.weight"]


def test_a_stack_with_missing_layers_is_named() -> None:
    stacks = Stacks((Stack("h.0-1.w", ("h.0.w", "h.1.w")),))
    with pytest.raises(KeyError, match=r"h\.1\.w"):
        stacks.join({"h.0.w": 1}, list)


def test_names_of_another_length_still_make_one_name() -> None:
    assert merged_name(["a.b", "a.b.c"]) == "a.b-a.b.c"
