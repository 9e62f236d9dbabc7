"""The graph passes: dead nodes, connection to the loss, known values, masks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detente.bridge.capture.capture import capture
from detente.bridge.graph import without_dead
from detente.bridge.passes.connected import connected
from detente.bridge.passes.known import known
from detente.bridge.passes.masks import ATTENTION, classify, recognise_masks


class Attend(nn.Module):
    """Attention whose mask ``make(length, padding)`` builds inside forward, as transformers does."""

    def __init__(self, make):
        super().__init__()
        self.project, self.frozen, self.unread = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.register_buffer("ones", torch.ones(5, 5, dtype=torch.bool))
        self.make = make

    def forward(self, x, padding):
        y = self.frozen(self.project(x))
        torch.linalg.norm(self.unread(x))  # dead
        mask = self.make(self, 5, padding)
        return nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=mask).sum()


def rows_and_columns(self, n, padding):
    return torch.arange(n)[None, :] <= torch.arange(n)[:, None]


def additive(self, n, padding):
    lowest = torch.finfo(torch.float32).min
    return torch.full((n, n), lowest).triu(1)[None]


MASKS = {
    "bool triangle": (rows_and_columns, True, False),
    "additive triangle": (additive, True, False),
    "from a buffer": (lambda self, n, padding: self.ones.tril(), True, False),
    "all true": (lambda self, n, padding: self.ones[None], False, False),
    "depends on the batch": (
        lambda self, n, padding: rows_and_columns(self, n, padding) & padding[:, None],
        None,
        True,
    ),
    "a band": (lambda self, n, padding: self.ones.tril() & self.ones.triu(-2), None, True),
}


def graph_of(make):
    made = capture(
        Attend(make),
        lambda model, batch: model(*batch),
        (torch.ones(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)),
    )
    return made, without_dead(made.graph)


@pytest.mark.parametrize("name", MASKS)
def test_mask_is_recognised_when_it_is_known(name):
    make, causal, kept = MASKS[name]
    made, graph = graph_of(make)
    after = recognise_masks(graph, made.weights.tensors)
    (node,) = [n for n in after.nodes if n.op == ATTENTION]
    given = dict(node.kwargs)
    has_mask = len(node.args) > 3 or given.get("attn_mask") is not None
    assert has_mask == kept
    if causal is not None:
        assert bool(given.get("is_causal", False)) == causal
        assert len(after.nodes) < len(graph.nodes), "what only the mask needed is gone"


def test_classify_looks_at_every_row():
    triangle = torch.ones(4, 4, dtype=torch.bool).tril()
    assert classify(triangle[None, None]) == "causal"
    broken = triangle.clone()
    broken[3, 0] = False
    assert classify(torch.stack([triangle, broken])) is None
    assert classify(torch.where(triangle, 0.0, float("-inf"))) == "causal"
    assert classify(torch.where(triangle, 0.0, -1e4)) is None
    assert classify(torch.ones(4, 4, dtype=torch.int64)) is None


def test_dead_nodes_go_and_the_signature_stays():
    made, graph = graph_of(rows_and_columns)
    assert not any("norm" in n.op for n in graph.nodes)
    assert len(graph.inputs) == len(made.graph.inputs)


def test_what_the_loss_is_not_connected_to_gets_no_gradient():
    _, graph = graph_of(rows_and_columns)
    assert connected(graph) == {"project.weight", "project.bias"}


def test_known_values_are_torchs_own():
    made, graph = graph_of(rows_and_columns)
    values = known(graph, made.weights.tensors)
    (node,) = [n for n in graph.nodes if n.op == ATTENTION]
    mask = dict(node.kwargs).get("attn_mask") or node.args[3]
    assert torch.equal(values[mask.id], torch.ones(5, 5, dtype=torch.bool).tril())
    assert not any(i.id in values for i in graph.inputs if i.kind in ("parameter", "batch"))
