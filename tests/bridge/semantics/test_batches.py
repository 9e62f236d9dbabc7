"""Batches and results of every shape: nested, by keyword, ModelOutput, aux; changed shapes; schedulers; randomness."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.certify.eager import eager_step
from detente.bridge.random import twin
from tests.bridge.conftest import Double

Pair = namedtuple("Pair", "left right")


class Model(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(p)

    def forward(self, x, scale=1.0, extra=None):
        torch.rand(2)  # a dead draw keeps its number
        y = self.drop(self.linear(x)) * scale
        return y if extra is None else y + extra["bias"]


def compiled(model, loss, batch, lr=0.1, **options):
    return bridge.compile(
        model, loss, torch.optim.SGD(model.parameters(), lr=lr), example_batch=batch, **options
    )


def test_nested_batch_and_aux(same_function):
    batch = {"pair": Pair(torch.ones(2, 4), [torch.zeros(2, 4), 3.0]), "mode": "sum"}

    def loss(model, batch):
        y = model(batch["pair"].left, scale=batch["pair"].right[1], extra={"bias": batch["pair"].right[0]})
        value = getattr(y, batch["mode"])()
        return value, {"y": y, "name": "kept", "list": [y.sum(0)]}

    step = same_function(Model(), loss, batch)
    with Double():  # the mode that it was compiled in
        value, aux = step(
            {"pair": Pair(torch.ones(2, 4).double(), [torch.zeros(2, 4).double(), 3.0]), "mode": "sum"}
        )
    assert aux["name"] == "kept" and aux["y"].shape == (2, 4) and len(aux["list"]) == 1
    assert float(aux["y"].sum()) == pytest.approx(float(value))


def test_another_shape_is_another_program_and_is_cached():
    step = compiled(Model(), lambda m, b: m(b).sum(), torch.ones(2, 4))
    for rows in (2, 3, 2, 3, 2):
        step(torch.ones(rows, 4))
    step(torch.ones(2, 4, dtype=torch.float64).float())
    assert len(step.programs) == 2


def test_another_structure_is_refused():
    step = compiled(Model(), lambda m, b: m(b["x"]).sum(), {"x": torch.ones(2, 4)})
    with pytest.raises(bridge.Refused, match=r"missing batch\['x'\].*unexpected batch\['y'\]"):
        step({"y": torch.ones(2, 4)})


def test_what_hides_tensors_is_refused():
    with pytest.raises(bridge.Refused, match=r"batch.*numpy.ndarray[^$]*from_numpy"):
        compiled(Model(), lambda m, b: m(b["x"]).sum(), {"x": torch.ones(2, 4).numpy()})


def test_scheduler_changes_the_rate_without_another_program():
    model, other = Model(), Model()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, other)]
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in optimizers]
    x, loss = torch.ones(2, 4), lambda m, b: m(b).pow(2).sum()
    step = bridge.compile(model, loss, optimizers[0], example_batch=x)
    for _ in range(4):
        value = step(x)
        assert float(value) == pytest.approx(float(eager_step(other, loss, optimizers[1], x).loss), rel=1e-6)
        for scheduler in schedulers:
            scheduler.step()
    assert len(step.programs) == 1


def test_dropout_repeats_with_the_seed_and_agrees_with_eager():
    x, loss = torch.ones(8, 4), lambda m, b: m(b).pow(2).sum()
    runs = []
    for _ in range(2):
        step = compiled(Model(0.5), loss, x, seed=5, certificate="full")
        runs.append([float(step(x)) for _ in range(3)])
    assert runs[0] == runs[1] and len(set(runs[0])) == 3
    assert step.certificate.ok
    other = Model(0.5)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    eager = [float(eager_step(other, loss, optimizer, x, twin(5, count)).loss) for count in range(3)]
    assert runs[0] == pytest.approx(eager, rel=1e-6)
    mixed = compiled(Model(0.5), loss, x, seed=5)
    assert [float(mixed(x)), float(mixed.eager(x)), float(mixed(x))] == pytest.approx(eager, rel=1e-6)


def test_the_loss_is_a_tensor_that_waits():
    step = compiled(Model(), lambda m, b: m(b).sum(), torch.ones(2, 4), certificate="none")
    value = step(torch.ones(2, 4))
    assert isinstance(value, torch.Tensor) and value.shape == () and value.dtype == torch.float32
    assert value._plain is None, "shape and dtype are known without waiting"
    assert float(value) == value.item() == float(value + 0) and f"{value:.2f}" and "tensor(" in repr(value)
    assert float(torch.stack([value, value]).sum()) == pytest.approx(2 * value.item())
