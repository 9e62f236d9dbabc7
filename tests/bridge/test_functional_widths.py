"""``detente.functional`` on batches of int64, as torch makes them, with JAX's 64-bit kinds switched off."""

from __future__ import annotations

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detente

IDS = torch.tensor([[1, 2, 9], [3, 4, 0]])
X, LABELS = torch.linspace(-1, 1, 12).view(3, 4), torch.tensor([1, -100, 3])


def embedded(model, ids):
    return model(ids.clamp(0, 9)).square().sum()


def shifted(model, ids):
    return model((ids + torch.arange(3)) % 10).sin().sum()


def indexed(model, ids):
    return model.weight[ids, ids % 4].square().sum() + model.weight.index_select(0, ids[0]).sin().sum()


def put(model, ids):
    rows = torch.zeros(10, 4).index_add(0, ids[0], model.weight[:3]).scatter(0, ids[:1], model.weight[:1, :3])
    return rows.square().sum()


def labelled(model, batch):
    x, labels = batch
    scores = model(x)
    return (
        F.cross_entropy(scores, labels, ignore_index=-100) + scores.gather(1, labels.clamp(0)[:, None]).mean()
    )


def ranked(model, batch):
    values, places = model(batch[0]).topk(2)
    return (values * places).sum() + model(batch[0]).sort(dim=1)[0][:, 0].sum()


CASES = {
    "embedded": (lambda: nn.Embedding(10, 4), embedded, IDS),
    "shifted": (lambda: nn.Embedding(10, 4, padding_idx=2), shifted, IDS),
    "indexed": (lambda: nn.Embedding(10, 4), indexed, IDS),
    "put": (lambda: nn.Embedding(10, 4), put, IDS),
    "labelled": (lambda: nn.Linear(4, 10), labelled, (X, LABELS)),
    "ranked": (lambda: nn.Linear(4, 10), ranked, (X, LABELS)),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_need_no_switch(name):
    assert not jax.config.jax_enable_x64
    make, loss, batch = CASES[name]
    torch.manual_seed(0)
    model = make()
    f = detente.functional(model, loss, batch)
    arrays = jax.tree.map(lambda t: t.numpy(), batch)
    value = loss(model, batch)
    value.backward()
    for transformed in (jax.value_and_grad(f), jax.jit(jax.value_and_grad(f))):
        ours, gradients = transformed(f.params, arrays)
        assert float(ours) == pytest.approx(value.item(), rel=1e-5)
        for parameter, tensor in model.named_parameters():
            torch.testing.assert_close(
                torch.tensor(gradients[parameter].tolist()), tensor.grad, rtol=1e-4, atol=1e-5
            )


def test_it_shows_itself_in_a_line():
    f = detente.functional(nn.Embedding(10, 4), embedded, IDS)
    assert repr(f).startswith("<Functional of 1 parameters (40 numbers) and 0 buffers") and "\n" not in repr(
        f
    )
