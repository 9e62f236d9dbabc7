"""The neutral graph of small modules: lines, scopes, marks, draws, names. Also the self-test of torch's private parts
that capture leans on (``traceback.annotate``, the wrap operators, the checkpoint generator)."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from detente import bridge
from detente.bridge.capture.capture import capture
from detente.bridge.capture.draws import draws
from detente.bridge.graph import node_refs, refs

X = torch.ones(3, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def forward(self, x):
        with torch.no_grad():
            held = self.inner(x)
        torch.rand(3)
        self.inner(x)  # dead, and its draw keeps its number
        part = self.inner[0].bias  # the reentrant form gives gradients to what comes from what takes one
        y = checkpoint(lambda t: checkpoint(self.inner, t + part, use_reentrant=True), x, use_reentrant=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = self.inner(y)
        self.inner[1].eval()
        still = self.inner(y)
        self.inner[1].train()
        return (held * y * low * still).sum()


def captured():
    return capture(Net(), lambda model, batch: model(batch), X)


def test_marks_scopes_lines_and_draws():
    graph = captured().graph
    drawn = [n for n in graph.nodes if n.draw is not None]
    assert [(n.draw, n.marks) for n in drawn] == [
        (0, (("no_grad",),)),
        (3, (("checkpoint", 1), ("checkpoint", 2))),
        (4, ()),
    ]
    assert {n.scope for n in drawn} == {"inner.1"}
    source, start = inspect.getsourcelines(Net.forward)
    for node in graph.nodes:
        assert node.where.file == __file__, node
        assert start <= node.where.line < start + len(source)
        assert node.where.code in source[node.where.line - start]


def test_every_draw_is_counted_once():
    assert captured().draws == 5  # rand, and four dropouts that train


def test_a_node_reads_only_what_stands_before_it():
    graph = captured().graph
    seen = {i.id for i in graph.inputs}
    for node in graph.nodes:
        assert {r.id for r in node_refs(node)} <= seen
        assert node.id not in seen
        seen.add(node.id)
    assert {r.id for o in graph.outputs for r in refs(o.value)} <= seen


def test_inputs_have_torchs_names():
    inputs = captured().graph.inputs
    assert [(i.kind, i.name) for i in inputs] == [
        ("parameter", "inner.0.weight"),
        ("parameter", "inner.0.bias"),
        ("batch", "batch"),
    ]
    assert [i.trainable for i in inputs] == [True, True, False]


def test_capture_leaves_torch_and_the_module_as_they_were():
    model = Net()
    plain = (
        torch.autograd.Function.__dict__["apply"],
        torch.Tensor.register_hook,
        torch.utils.checkpoint._checkpoint_without_reentrant_generator,
        torch.fx.proxy.TracerBase._filter_traceback_frames,
    )
    before = {n: (id(p), p._version) for n, p in model.named_parameters()}
    capture(model, lambda m, b: m(b), X)
    assert plain == (
        torch.autograd.Function.__dict__["apply"],
        torch.Tensor.register_hook,
        torch.utils.checkpoint._checkpoint_without_reentrant_generator,
        torch.fx.proxy.TracerBase._filter_traceback_frames,
    )
    assert before == {n: (id(p), p._version) for n, p in model.named_parameters()}
    assert model.training and torch.is_grad_enabled()


def test_a_call_that_does_not_draw_counts_none():
    dropout = torch.ops.aten.dropout.default
    assert [
        draws(dropout, (X, p, train), {})
        for p, train in ((0.5, True), (0.5, False), (0.0, True), (1.0, True))
    ] == [
        1,
        0,
        0,
        0,
    ]
    attention = torch.ops.aten.scaled_dot_product_attention.default
    assert draws(attention, (X, X, X), {}) == 0 and draws(attention, (X, X, X), {"dropout_p": 0.1}) == 1
    assert (
        draws(torch.ops.aten.rand.default, ([3],), {}) == 1
        and draws(torch.ops.aten.add.Tensor, (X, X), {}) == 0
    )


class Switching(nn.Module):
    """Puts another part in place in its first forward, with the same weights, as BigBird's attention does (and draws
    random numbers to make it)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.part = nn.Sequential(nn.Linear(4, 4))
        self.switched = False

    def forward(self, x):
        if not self.switched:
            other = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
            other[0] = self.part[0]
            self.part, self.switched = other, True
        return self.part(x)


def test_a_part_that_forward_replaces(same_function):
    same_function(Switching(), lambda m, b: m(b).pow(2).mean(), X, steps=1)
    model = Switching()
    step = bridge.compile(
        model,
        lambda m, b: m(b).pow(2).mean(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=X,
    )
    step(X), float(step(X)), float(step(X))
    assert len(model.part) == 2 and model.switched  # as in eager
    assert step.certificate.ok and [p.captured.draws for p in step.programs] == [1]


class Growing(Switching):
    def forward(self, x):
        self.part = nn.Sequential(nn.Linear(4, 4))
        return self.part(x)


def test_a_part_with_weights_of_its_own_is_refused():
    model = Growing()
    with pytest.raises(bridge.Refused, match=r"replaces model\.part by a part with tensors of its own"):
        bridge.compile(
            model,
            lambda m, b: m(b).pow(2).mean(),
            torch.optim.SGD(model.parameters(), lr=0.1),
            example_batch=X,
        )
    assert model.part[0].weight.requires_grad
