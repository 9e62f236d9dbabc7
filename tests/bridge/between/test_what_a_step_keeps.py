"""What a step goes on holding: of its programs the last ones, of a module that became another one nothing."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import detente
from detente.bridge.step import variants
from tests.bridge.between.loops import Net, World, batches, cross_entropy, equal


def scaled(world: World) -> Any:
    return lambda model, batch: cross_entropy(model, batch) * batch["by"]


def test_of_very_many_programs_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count in the batch. The first program stays, and so does the one that is used in between."""
    monkeypatch.setattr(variants, "MOST", 4)
    counts = [1, 2, 3, 2, 4, 2, 5, 2, 6, 1, 2, 3]

    def loop(world: World) -> list[float]:
        return [
            world.step(batch | {"by": by}) for by, batch in zip(counts, batches(len(counts)), strict=True)
        ]

    with pytest.warns(UserWarning, match="has 4 programs, and a new one takes the place") as told:
        world = equal(
            loop, loss=scaled, build=Net, example=batches()[0] | {"by": 1}, optimizer=torch.optim.Adagrad
        )
    assert sum("takes the place" in str(one.message) for one in told) == 1
    kept = world.more["compiled"]._variants
    assert len(kept.made) == len(kept.captured) == 4 and kept.number == 7
    assert kept.asks.keys() <= {id(captured.graph) for captured, _ in kept.captured.values()}
    values = [int(layout[2][0][-1]) for layout, _ in kept.made]
    assert values[0] == 1 and set(values) == {1, 2, 3, 6}
    assert all(certificate is not None for certificate in world.more["compiled"].certificates)


def test_a_program_that_waits_for_its_certificate_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "MOST", 2)
    torch.manual_seed(0)
    model = Net()
    step = detente.compile(
        model,
        lambda m, b: cross_entropy(m, b) * b["by"],
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=batches()[0] | {"by": 1},
        cache=False,
        quiet=True,
    )
    step(batches()[0] | {"by": 2})
    for by in (3, 4):
        step.gradients(batches()[0] | {"by": by})
    assert step.settled().ok


def test_parts_that_were_replaced_are_let_go() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = detente.compile(
        model, cross_entropy, sgd, example_batch=batches()[0], cache=False, certificate="none"
    )
    float(step(batches()[0]))
    gone = []
    for batch in batches(2):
        old = model[2]
        gone += [weakref.ref(old.bias), weakref.ref(old)]
        kept = old.weight
        model[2] = nn.Linear(8, 3)
        sgd.param_groups[0]["params"] = list(model.parameters())
        sgd.state.clear()
        float(step(batch))
        assert type(kept) is nn.Parameter  # nobody is told of it any more
        del old, kept
    gc.collect()
    assert [one() for one in gone] == [None] * len(gone)
    float(model[2].weight.norm())
    assert type(model[2].weight) is not nn.Parameter
    weight = model[2].weight
    del step
    gc.collect()
    assert type(weight) is nn.Parameter
