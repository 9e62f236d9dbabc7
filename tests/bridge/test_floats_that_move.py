"""A float of Python's that moves with the steps (a temperature, a rate that a loss reads): whatever a forward makes of
it is what eager makes, in its dtype. It is an input where it is computed with, and each value is a program where
anything else is asked of it."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import detente
from detente.bridge.live.moving_number import MovingNumber, no_questions
from detente.bridge.refusal import Refused
from tests.sampled import sampled


def in_place(y: Any, t: Any) -> Any:
    z = y * 1
    shown = z
    z *= t
    return shown + z


def caught(y: Any, t: Any) -> Any:
    try:
        return y * float(t)
    except Exception:
        return y * 7


INPUTS: dict[str, Any] = {
    "times": lambda y, t: y * t,
    "by torch.mul": torch.mul,
    "of no dimension": lambda y, t: y.mean() * t,
    "of what follows from it": lambda y, t: y * (0.5 * (1 - t) / (t + 1) ** 2),
    "whole numbers": lambda y, t: y * (torch.arange(2) * t),
    "isinstance": lambda y, t: y * (t if isinstance(t, float) else 100.0),
    "in place": in_place,
    "a method in place": lambda y, t: (y * 1).mul_(t),
    "taken from": lambda y, t: (1 - t) - y,
    "divided by": lambda y, t: t / (y + 3),
    "raised": lambda y, t: t ** (y * y) + (y * y + 1) ** t,
    "bfloat16": lambda y, t: (y.bfloat16() * t).float(),
    "bfloat16 of no dimension": lambda y, t: (y.bfloat16().mean() * t).float(),
    "complex": lambda y, t: (torch.complex(y, y) * t).abs(),
    "float64": lambda y, t: y.double() * t,
    "summed": lambda y, t: y * -sum([t, abs(t)]),
}
ASKED: dict[str, Any] = {
    "math.cos": lambda y, t: y * 0.5 * (1 + math.cos(math.pi * t)),
    "full": lambda y, t: y * torch.full((2,), t),
    "alpha": lambda y, t: torch.add(y, y, alpha=t),
    "caught": caught,
    "pad": lambda y, t: F.pad(y, (1, 1), value=t),
    "torch.tensor": lambda y, t: y * torch.tensor(t),
    "torch.tensor of a list": lambda y, t: y * torch.tensor([t, 2 * t]),
    "if": lambda y, t: y * (2 if t > 0.35 else 1),
    "min": lambda y, t: y * min(t, 0.3),
    "round": lambda y, t: y * round(t, 1),
    "format": lambda y, t: y * len(f"{t * 1e5:.0f}"),
    "lerp": lambda y, t: torch.lerp(y, y * 2, t),
    "clamp": lambda y, t: y.clamp(max=t),
    "leaky_relu": F.leaky_relu,
    "where": lambda y, t: torch.where(y > 0, y, t),
    "compared": lambda y, t: y * (y > t),
    "label smoothing": lambda y, t: F.cross_entropy(y, torch.tensor([0, 1, 0]), label_smoothing=t),
    "in a dictionary's key": lambda y, t: y * {0.1: 5.0}.get(t, 2.0),
}


# The same, of a number of numpy's, which has more to ask for.
NUMPYS: dict[str, Any] = {
    "of numpy's": lambda y, t: y * (np.float64(2) * (t + np.float64(1))) + t * y.mean() - np.pi * t,
    "whether it is numpy's": lambda y, t: y * (t if isinstance(t, np.floating) else 100.0),
    "by np.multiply": lambda y, t: y * np.multiply(t, 0.5),
}
ASKED_OF_NUMPYS: dict[str, Any] = {
    "np.exp": lambda y, t: y * np.exp(-t),
    "np.maximum": lambda y, t: y * np.maximum(t, 0.3),
    "item": lambda y, t: y * t.item(),
    "dtype": lambda y, t: y * (t if t.dtype == np.float64 else 100.0),
    "an array": lambda y, t: y * torch.from_numpy(np.asarray([t, t], np.float32)),
    "its own type": lambda y, t: y * (t if type(t) is np.float64 else 100.0),
    "an array of a number": lambda y, t: y * np.array(t).item(),
}


class Net(nn.Module):
    def __init__(self, use: Any) -> None:
        super().__init__()
        self.layer, self.use, self.t = nn.Linear(2, 2), use, 0.1

    def forward(self, x: Any) -> Any:
        return self.use(self.layer(x), self.t)


def of_attribute(model: Any, x: Any) -> Any:
    return model(x).pow(2).mean()


def of_batch(model: Any, batch: Any) -> Any:
    return model.use(model.layer(batch[0]), batch[1]).pow(2).mean()


def trained(use: Any, place: str, bridge: bool, kind: type = float) -> tuple[list[float], torch.dtype, int]:
    torch.manual_seed(0)
    model, x = Net(use), torch.ones(3, 2)
    model.t = kind(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = of_attribute if place == "attribute" else of_batch

    def batch() -> Any:
        return x if place == "attribute" else (x, model.t)

    step: Any = None
    if bridge:
        step = detente.compile(model, loss, optimizer, example_batch=batch(), quiet=True)
    losses, dtype = [], torch.float32
    for number in range(5):
        if bridge:
            value = step(batch())
        else:
            optimizer.zero_grad()
            value = loss(model, batch())
            value.backward()
            optimizer.step()
        losses.append(value.item())
        dtype = value.dtype
        model.t = kind(0.1 + 0.1 * (number + 1))
    return losses, dtype, len(step.programs) if bridge else 0


@pytest.mark.parametrize("place", ["attribute", "batch"])
@pytest.mark.parametrize("name", [*sampled(INPUTS, 6), *sampled(ASKED, 6)])
def test_whatever_is_made_of_it_is_eagers(name: str, place: str) -> None:
    use = INPUTS.get(name) or ASKED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses, dtype, _ = trained(use, place, bridge=False)
        mine, its, programs = trained(use, place, bridge=True)
    assert mine == pytest.approx(losses, rel=2e-5, abs=1e-7)
    assert its == dtype
    assert programs == (5 if name in ASKED else 3 if place == "attribute" else 2), (
        "one for each value, or an input"
    )


@pytest.mark.parametrize(
    "name", [*sampled(INPUTS, 3), *sampled(ASKED, 2), *sampled(NUMPYS, 3), *sampled(ASKED_OF_NUMPYS, 3)]
)
def test_a_number_of_numpys_is_one(name: str) -> None:
    asked = ASKED | ASKED_OF_NUMPYS
    use = (INPUTS | NUMPYS | asked)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses, dtype, _ = trained(use, "attribute", bridge=False, kind=np.float64)
        mine, its, programs = trained(use, "attribute", bridge=True, kind=np.float64)
    assert mine == pytest.approx(losses, rel=2e-5, abs=1e-7)
    assert its == dtype
    assert programs == (5 if name in asked else 3)


def of_places(model: Any, settings: Any) -> dict[str, tuple[Any, Any]]:
    """How a loss reads a float, and how the loop moves it, by where it stands."""
    table, row, cell = {"t": 0.1}, [[0.1]], 0.1

    def moved(value: float) -> None:
        nonlocal cell
        cell = value

    model.plain = SimpleNamespace(t=0.1)
    return {
        "a dictionary": (lambda: table["t"], lambda v: table.update(t=v)),
        "a list in a list": (lambda: row[0][0], lambda v: row[0].__setitem__(0, v)),
        "a closure": (lambda: cell, moved),
        "a class": (lambda: settings.t, lambda v: setattr(settings, "t", v)),
        "an object": (lambda: model.plain.t, lambda v: setattr(model.plain, "t", v)),
    }


MADE: dict[str, tuple[Any, int]] = {
    "an input": (lambda y, t: y.mean() * t, 3),
    "read": (lambda y, t: y * math.cos(t), 5),
    "its type": (lambda y, t: y * (t if type(t) is float else 5.0), 5),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize(
    "place", ["a dictionary", *sampled(["a closure", "a list in a list", "a class", "an object"], 2)]
)
def test_wherever_it_stands(place: str, made: str) -> None:
    use, programs = MADE[made]

    def run(bridge: bool) -> tuple[list[float], torch.dtype, int]:
        torch.manual_seed(0)
        model, x = nn.Linear(2, 2), torch.ones(3, 2)
        read, move = of_places(model, type("Settings", (), {"t": 0.1}))[place]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(m: Any, x: Any) -> Any:
            return use(m(x), read()).pow(2).mean()

        step: Any = None
        if bridge:
            step = detente.compile(model, loss, optimizer, example_batch=x, quiet=True)
        losses, dtype = [], torch.float32
        for number in range(5):
            if bridge:
                value = step(x)
            else:
                optimizer.zero_grad()
                value = loss(model, x)
                value.backward()
                optimizer.step()
            losses.append(value.item())
            dtype = value.dtype
            move(0.2 + 0.1 * number)
        return losses, dtype, len(step.programs) if bridge else programs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (losses, *rest), (mine, *its) = run(bridge=False), run(bridge=True)
    assert mine == pytest.approx(losses, rel=2e-5, abs=1e-7)
    assert its == rest


def test_what_asks_is_refused_though_it_is_caught() -> None:
    number = MovingNumber(torch.tensor(0.5, dtype=torch.float64))
    with pytest.raises(Refused, match="depends on a value of Python's"), no_questions():
        caught(torch.ones(2), number)
    with no_questions():
        assert isinstance(number * 2, float) and torch.equal(torch.ones(2) * number, torch.full((2,), 0.5))


class Counts(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.count, self.t, self.last, self.log = 0.0, 1.0, None, {}


def counts(m: Any, b: Any) -> Any:
    m.count += 1.0
    return m(b["x"]).square().mean()


def sums(m: Any, b: Any) -> Any:
    m.count += b["w"]
    return (m(b["x"]) * b["w"]).square().mean()


def keeps(m: Any, b: Any) -> Any:
    m.last = m.t * 2
    return (m(b["x"]) * m.t).square().mean()


def decays(m: Any, b: Any) -> Any:
    m.t = m.t * 0.9
    return (m(b["x"]) * m.t).square().mean()


def logs(m: Any, b: Any) -> Any:
    m.log["w"] = b["w"]
    return (m(b["x"]) * b["w"]).square().mean()


def gives_back(m: Any, b: Any) -> Any:
    return (m(b["x"]) * m.t).square().mean(), {"t": m.t, "w": b["w"] * 2}


@pytest.mark.parametrize("loss", [counts, sums, keeps, decays, logs, gives_back], ids=lambda f: f.__name__)
def test_who_keeps_one_has_a_float(loss: Any) -> None:
    """What stands in a capture for it is nobody's: an attribute, a log and what is given back hold eager's floats."""

    def run(bridge: bool) -> Any:
        torch.manual_seed(0)
        model = Counts()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step: Any = None
        found: list[Any] = []
        for number in range(5):
            batch = {"x": torch.ones(6, 4), "w": 1.0 - 0.1 * number}
            if loss is not decays:
                model.t = 1.0 - 0.1 * number
            if bridge:
                step = step or detente.compile(model, loss, optimizer, example_batch=batch, quiet=True)
                given = step(batch)
            else:
                optimizer.zero_grad()
                given = loss(model, batch)
                (given[0] if isinstance(given, tuple) else given).backward()
                optimizer.step()
            value, aux = given if isinstance(given, tuple) else (given, {})
            held = (model.count, model.t, model.last, *model.log.values(), *aux.values())
            assert all(type(x) is float or x is None for x in held)
            found.append([float(value), *(x for x in held if x is not None)])
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mine, eagers = run(bridge=True), run(bridge=False)
    for ours, its in zip(mine, eagers, strict=True):
        assert ours == pytest.approx(its, rel=2e-5)
