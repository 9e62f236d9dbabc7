"""A program's functional form without a second trace: the same graph as by torch's, or torch's is taken."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detente.bridge.capture import export
from detente.bridge.capture.capture import capture
from detente.bridge.capture.functional import Functional
from detente.bridge.refusal import Refused
from tests.sampled import sampled

_spec = importlib.util.spec_from_file_location("families", Path(__file__).parents[1] / "test_families.py")
assert _spec is not None and _spec.loader is not None
families = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(families)

X = torch.linspace(-2, 2, 48).reshape(4, 12)


def described(graph):
    """A graph in words that say nothing of the order of its inputs: constants and buffers are in torch's in that of the
    modules that hold them, and have no order."""
    names = {str(i.id): f"{i.kind} {i.name}" for i in graph.inputs}

    def named(found):
        return f"id={names.setdefault(found[1], str(len(names)))}"

    body = [re.sub(r"id=(-?\d+)", named, repr(part)) for part in (*graph.nodes, *graph.outputs)]
    inputs = sorted(re.sub(r"id=\d+", "", repr(i)) for i in graph.inputs)
    return inputs, body, {n: a.tobytes() for n, a in graph.constants.items()}, graph.unreached


@pytest.fixture
def both(monkeypatch):
    """Two captures, by torch's trace and as it is done here; and whether that was the short way."""
    real, ways = export.functional, []

    def noted(exported):
        ways.append(real(exported))
        return ways[-1]

    def run(model, batch, loss=lambda m, b: m(b)):
        # Of two models, because a first forward may leave something behind (transformers hooks its layers then).
        other = copy.deepcopy(model)
        monkeypatch.setattr(export, "functional", lambda exported: exported.run_decompositions({}))
        long = capture(other, loss, batch)
        monkeypatch.setattr(export, "functional", noted)
        short = capture(model, loss, batch)
        assert described(long.graph) == described(short.graph)
        assert (long.draws, len(long.writes)) == (short.draws, len(short.writes))
        return isinstance(ways[-1], Functional)

    return run


@pytest.mark.parametrize("family", sampled(families.FAMILIES, 3), ids=lambda family: family.__name__)
def test_both_ways_are_one_graph(both, family):
    torch.manual_seed(0)
    model, batch = family()
    both(model.train(), batch, families.loss)


class Of(nn.Module):
    """A module that computes with one function."""

    def __init__(self, run, *parts):
        super().__init__()
        self.weight, self.parts = nn.Parameter(torch.ones(12)), nn.ModuleList(parts)
        self.run = run

    def forward(self, x):
        return self.run(self, x * self.weight).square().mean()


def rows(module, x):
    y = torch.zeros(5, 12)
    y[1:] = x
    y[0] = 3.0
    return y * 2


def first(module, x):
    y = x + 1
    return y.relu_() + y


def corner(module, x):
    y = x + 1
    y[0][:2].fill_(3.0)
    return y


def turned(y):
    y.t().mul_(2)
    return y


def stale(module, x):
    y = x + 1
    row = y[0]
    y.mul_(2)
    return y + row


def shared(module, x):
    return module.parts[0](module.parts[0](x))


SHORT = {
    "reshape of what is dense, and of what is not": lambda m, x: x.reshape(12, 4) + x.t().reshape(12, 4),
    "contiguous": lambda m, x: x.contiguous() + x.t().contiguous().t(),
    "to another dtype and to its own": lambda m, x: x.to(torch.float64).to(torch.float32).to(torch.float32),
    "dropout, and dropout of nothing": lambda m, x: F.dropout(F.dropout(x, 0.4), 0.0),
    "two dropouts of one shape": lambda m, x: F.dropout(x, 0.4) * F.dropout(x, 0.4),
    "dropout in evaluation": lambda m, x: F.dropout(x, 0.4, training=False),
    "several results": lambda m, x: torch.cat(x.chunk(3, 1)[::-1], 1) + torch.stack(x.split(6, 1)).sum(),
    "indices": lambda m, x: (
        x[:, [3, 1, 3]].mean(1, keepdim=True) + x[..., None].expand(-1, -1, 2).flatten(1)[:, :1]
    ),
    "views of views": lambda m, x: x.view(2, 2, 12).transpose(0, 1).unsqueeze(0).squeeze().flatten(1),
    "a detached one": lambda m, x: x * x.detach(),
    "composites that stay": lambda m, x: F.layer_norm(F.linear(x, x), (4,)).softmax(-1),
    "attention": lambda m, x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}
WRITES = {
    "what was computed": lambda m, x: (x + 1).mul_(2).relu_(),
    "what was computed, read by its first name": first,
    "a row and a part": rows,
    "one after the other": lambda m, x: torch.zeros(4, 12).copy_(x).add_(x, alpha=2).clamp_(-1, 1),
    "a wider one into a narrower one": lambda m, x: x.bfloat16().add_(x).float(),
    "what a dropout of nothing gave back": lambda m, x: F.dropout(x + 1, 0.0).mul_(2),
    "with numbers drawn": lambda m, x: x * torch.empty(4, 12).uniform_() + x * torch.zeros(4, 12).normal_(),
    "without a gradient": lambda m, x: x * torch.no_grad()(torch.exp)(x),
    "a column by numbers": lambda m, x: torch.zeros(4, 12).index_put((torch.tensor([1]),), x[:1]),
    "a constant": lambda m, x: x * torch.tensor([1.0, 2.0]).repeat(6),
}
LONG = {
    "autocast": lambda m, x: torch.autocast("cpu", torch.bfloat16)(F.linear)(x, x).float(),
    "a view that is read after its tensor was written": stale,
    "a view of a view": corner,
    "what shows the same memory in another order": lambda m, x: turned(x + 1),
}


@pytest.mark.parametrize("name", sampled(SHORT, 2))
def test_operators_that_may_alias_are_rewritten_where_they_stand(both, name):
    assert both(Of(SHORT[name]), X)


@pytest.mark.parametrize("name", sampled(WRITES, 2))
def test_what_is_written_is_followed(both, name):
    assert both(Of(WRITES[name]), X)


@pytest.mark.parametrize("name", sampled(LONG, 2))
def test_what_writes_or_has_regions_is_traced_again(both, name):
    assert not both(Of(LONG[name]), X)


def test_a_batch_norm_writes_its_statistics(both):
    assert both(Of(lambda m, x: m.parts[0](x), nn.BatchNorm1d(12)), X)
    assert both(Of(lambda m, x: m.parts[0](x), nn.BatchNorm1d(12, affine=False, momentum=0.3)), X)
    assert both(Of(lambda m, x: m.parts[1](m.parts[0](x)), nn.BatchNorm1d(12), nn.BatchNorm1d(12)), X)
    assert both(Of(lambda m, x: m.parts[0](x), nn.BatchNorm1d(12, track_running_stats=False)), X)
    still = Of(lambda m, x: m.parts[0](x), nn.BatchNorm1d(12))
    still.parts[0].eval()
    assert both(still, X)


def test_a_buffer_is_read_as_it_is_then(both):
    """Which value a reader gets depends on the order of the two."""
    norm = nn.BatchNorm1d(12)
    assert both(Of(shared, norm), X)
    assert both(Of(lambda m, x: m.parts[0](x) + m.parts[0].running_mean, norm), X)
    assert both(Of(lambda m, x: m.parts[0].running_mean + m.parts[0](x), norm), X)
    assert both(Of(lambda m, x: m.parts[0](x) * m.parts[0].num_batches_tracked, norm), X)


class Shown(nn.Module):
    """A buffer, and a part of it under a name of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12))
        self.register_buffer("seen", torch.zeros(12))
        self.register_buffer("front", self.seen[:6])

    def forward(self, x):
        self.seen.add_(1.0)
        return (x * self.weight + self.seen).sum() + self.front.sum()


def test_a_buffer_under_two_names_is_not_followed(monkeypatch):
    """Each has a placeholder of its own, and a write to the one would not be seen in the other."""
    ways, begun = [], []
    real = export.functional

    def noted(exported):
        ways.append("begun")
        found = real(exported)
        ways.append(type(found).__name__)
        return found

    monkeypatch.setattr(export, "functional", noted)
    norm = nn.BatchNorm1d(12)
    for model in (nn.Sequential(nn.Linear(12, 12), norm, nn.Linear(12, 12), norm), Shown()):
        ways.clear()
        with contextlib.suppress(Refused):
            capture(model, lambda m, b: m(b).sum(), X)
        assert "Functional" not in ways
        begun.append("begun" in ways)
    assert any(begun)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        y = self.linear(x)
        self.seen.add_(y.detach().sum(0))
        return y.square().mean()


def test_a_buffer_of_the_users_own_is_written(both):
    assert both(Counts(), X)
