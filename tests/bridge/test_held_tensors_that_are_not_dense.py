"""A sparse or a nested tensor that a loss holds (a graph's adjacency, rows of several lengths): what asks for its shape
alone runs, and what computes with it is refused with what to do. The name of a stored program cannot tell of it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge import Refused
from tests.bridge.between.loops import eager

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
SPARSE = torch.eye(4).to_sparse()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's, of layouts that are young
    HELD = {
        "coo": SPARSE,
        "csr": SPARSE.to_sparse_csr(),
        "csc": SPARSE.to_sparse_csc(),
        "bsr": torch.eye(4).to_sparse_bsr((2, 2)),
        "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
    }


def compiled(model: Any, loss: Any) -> Any:
    return detente.compile(
        model, loss, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=X, quiet=True
    )


@pytest.mark.parametrize("kind", HELD)
def test_its_length_may_be_asked_for(kind: str) -> None:
    held = HELD[kind]
    losses = []
    for bridged in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)

        def loss(m: Any, x: Any) -> Any:
            return m(x).square().mean() * held.size(0)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = compiled(model, loss) if bridged else eager(model, loss, optimizer)
        found = [float(step(X)) for _ in range(3)]
        losses.append(found)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("kind", HELD)
def test_what_computes_with_it_is_told_to_make_it_dense(kind: str) -> None:
    held = HELD[kind]

    def loss(m: Any, x: Any) -> Any:
        found = held * 2 if kind == "nested" else held @ m(x)
        return m(x).sum() + (found.to_padded_tensor(0.0) if kind == "nested" else found).sum()

    with pytest.raises(Refused, match=r"to_dense|to_padded_tensor"):
        compiled(nn.Linear(3, 2), loss)
