"""What PyTorch raises inside of a forward pass, where no step reads a fault word: ``detente.functional`` and
``step.gradients``."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.experimental import checkify
from torch import nn
from torch.nn import functional as F

import detente
from detente import bridge
from detente.bridge.lower.precision import x64

X, Y = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 0])
NONE, SOME = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def labelled(model: nn.Module, batch: Any) -> Any:
    scores = model(batch[0])
    return F.cross_entropy(scores, batch[1]), {"scores": scores, "best": batch[1] + 0}


def asking(model: nn.Module, batch: Any) -> Any:
    value = F.cross_entropy(model(batch[0]), batch[1])
    if batch[2].any():
        value = 3.0 * value
    return value, {"scores": value[None], "best": batch[1] + 0}


def guarded(model: nn.Module, batch: Any) -> Any:
    assert not batch[2].any()
    return asking(model, (batch[0], batch[1], NONE))


# a loss, a batch that is fine, one that PyTorch raises for (or answers otherwise), and what is raised
CASES = {
    "a label out of range": (labelled, (X, Y), (X, Y + 1), IndexError),
    "a guard": (guarded, (X, Y, NONE), (X, Y, SOME), AssertionError),
    "another answer": (asking, (X, Y, NONE), (X, Y, SOME), RuntimeError),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def arrays(batch: Any) -> Any:
    return jax.tree.map(lambda tensor: tensor.numpy(), batch)


@each_case
@pytest.mark.parametrize("way", ["value", "gradient"])
def test_a_plain_call_raises_with_the_line(case: Any, way: str) -> None:
    loss, good, bad, kind = case
    f = detente.functional(net(), loss, good)
    called = f if way == "value" else jax.grad(f)
    called(f.params, arrays(good))
    for batch in (bad, arrays(bad)):
        with pytest.raises(kind, match=r"test_functional_faults\.py"):
            called(f.params, batch)


@each_case
def test_inside_of_jit_everything_that_floats_is_nan(case: Any) -> None:
    loss, good, bad, _ = case
    model = net()
    f = detente.functional(model, loss, good)
    run = jax.jit(jax.value_and_grad(f.apply, has_aux=True))
    (value, (aux, buffers)), gradient = run(f.params, arrays(good))
    theirs, _ = loss(model, good)
    theirs.backward()
    assert float(value) == pytest.approx(theirs.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(gradient[name], parameter.grad, rtol=2e-5, atol=1e-7)
    assert np.isfinite(aux["scores"]).all() and np.isfinite(buffers["1.running_mean"]).all()
    (value, (aux, buffers)), gradient = run(f.params, arrays(bad))
    assert np.isnan(value) and np.isnan(aux["scores"]).all() and aux["best"].dtype == np.int64
    assert all(np.isnan(part).all() for part in gradient.values())
    # What is written behind a check that raises is not written, as in eager.
    assert np.isnan(buffers["1.running_mean"]).all()
    assert int(buffers["1.num_batches_tracked"]) == (0 if loss is guarded else 1)


def test_under_vmap_only_the_example_that_faults() -> None:
    def looked_up(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return model(ids).square().sum()

    model = nn.Embedding(10, 4)
    f = detente.functional(model, looked_up, torch.tensor([1, 2]))
    ids = np.array([[1, 2], [3, 10], [-1, 0], [9, 9]])
    values, gradients = jax.vmap(jax.value_and_grad(f), in_axes=(None, 0))(f.params, ids)
    assert np.isnan(values).tolist() == [False, True, True, False]
    assert np.isnan(gradients["weight"]).any((1, 2)).tolist() == [False, True, True, False]
    assert float(values[3]) == pytest.approx(float(looked_up(model, torch.tensor([9, 9])).detach()), rel=1e-6)


def test_checkify_hears_of_it() -> None:
    f = detente.functional(net(), labelled, (X, Y))
    checked = checkify.checkify(jax.jit(f), errors=checkify.nan_checks)
    checked(f.params, arrays((X, Y)))[0].throw()
    with pytest.raises(ValueError, match="nan"):
        checked(f.params, arrays((X, Y + 1)))[0].throw()


def test_a_program_that_cannot_fault_has_no_check() -> None:
    f = detente.functional(nn.Linear(6, 3), lambda m, x: m(x).square().mean(), X)
    assert "nan" not in jax.jit(f).lower(f.params, X.numpy()).as_text()


WIDE = torch.arange(1, 9) * 10_000_000_019


def hashed(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(ids % 97).square().mean()


def test_ids_that_32_bits_cannot_hold_are_not_cut() -> None:
    model = nn.Embedding(97, 4)
    f = detente.functional(model, hashed, WIDE)
    wanted = float(hashed(model, WIDE).detach())
    for ids in (WIDE, WIDE.numpy()):
        assert float(f(f.params, ids)) == pytest.approx(wanted, rel=1e-6)
    with x64():
        assert float(jax.jit(f)(f.params, WIDE.numpy())) == pytest.approx(wanted, rel=1e-6)
    for given in (WIDE.numpy(), np.ones(8, np.int32)):
        with pytest.raises(bridge.Refused, match=r"int32; it was captured as int64[\s\S]*enable_x64"):
            jax.jit(f)(f.params, given)
    narrow = detente.functional(model, hashed, WIDE % 1000)  # from here on nobody can tell
    jax.jit(narrow)(f.params, (WIDE % 1000).numpy())


def test_a_float_that_32_bits_cannot_hold() -> None:
    def scaled(model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0]).square().mean() * (batch[1].log().float())

    model = nn.Linear(6, 3)
    for number, fits in ((0.1, True), (float("inf"), True), (1e300, False)):
        batch = (X, torch.tensor(number, dtype=torch.float64))
        f = detente.functional(model, scaled, batch)
        if fits:
            jax.jit(f)(f.params, arrays(batch))
            continue
        with pytest.raises(bridge.Refused, match="float32; it was captured as float64"):
            jax.jit(f)(f.params, arrays(batch))


@pytest.mark.parametrize("accumulate", [1, 2])
@each_case
def test_gradients_of_a_step_raise_as_the_step_does(case: Any, accumulate: int) -> None:
    loss, good, bad, kind = case
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    how: dict[str, Any] = {"example_batch": good, "accumulate": accumulate, "certificate": "none"}
    step = bridge.compile(model, loss, sgd, cache=False, quiet=True, **how)
    step.gradients(good)
    if loss is asking and accumulate == 1:  # a step has a program for each answer
        theirs, _ = loss(model, bad)
        theirs.backward()
        torch.testing.assert_close(step.gradients(bad)["2.bias"], model[2].bias.grad, rtol=1e-4, atol=1e-6)
        return
    for asked in (lambda: step.gradients(bad), lambda: float(step(bad)[0])):
        with pytest.raises(kind, match=r"test_functional_faults\.py"):
            asked()
