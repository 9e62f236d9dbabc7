"""Texts and numbers in a batch that are others in every step: the file that a picture is of, the number of a sample. A
loss that asks nothing of them has one program for all, and one that asks has eager's answer."""

from __future__ import annotations

import copy
import math
import os
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import detente
from tests.bridge.between.loops import eager
from tests.sampled import sampled

X = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0))


def kept(m: Any, b: Any) -> Any:
    m.last = b["file"]
    return m(b["x"]).square().mean()


def copied(m: Any, b: Any) -> Any:
    m.last = copy.deepcopy(b["file"])
    return m(b["x"]).square().mean()


def unpacked(m: Any, b: Any) -> Any:
    def inner(x: Any, **rest: Any) -> Any:
        return m(x).square().mean()

    return inner(**b)


def caught(m: Any, b: Any) -> Any:
    try:
        return m(b["x"]).square().mean() * int(b["number"])
    except Exception:
        return m(b["x"]).square().mean() * 7


def by_name(m: Any, b: Any) -> Any:
    return m(b["x"]).square().mean() * {"a 0": 1.0, "a 1": 2.0}.get(b["file"], 3.0)


def plain(m: Any, b: Any) -> Any:
    return m(b["x"]).square().mean()


NOBODY: dict[str, Any] = {
    "nothing": plain,
    "whether it is a text": lambda m, b: plain(m, b) * (2.0 if isinstance(b["file"], str) else 1.0),
    "unpacked": unpacked,
    "handed on": lambda m, b: plain(m, {**b, "more": [b["file"], b["number"]]}),
}
SOMEBODY: dict[str, Any] = {
    "the number": lambda m, b: plain(m, b) * b["number"],
    "the text": lambda m, b: plain(m, b) * (2.0 if b["file"].endswith("1") else 1.0),
    "its length": lambda m, b: plain(m, b) * len(b["file"]),
    "by name": by_name,
    "which is larger": lambda m, b: plain(m, b) * max(b["number"], 2),
    "in a row": lambda m, b: plain(m, b) * m(b["x"])[b["number"] % 3].sum(),
    "of torch": lambda m, b: plain(m, b) * torch.tensor(float(b["number"])),
    "as long as it": lambda m, b: plain(m, b) * torch.ones(b["number"] + 1).sum(),
    "a part of a path": lambda m, b: plain(m, b) * len(os.path.join("", b["file"])),
    "what is written": lambda m, b: plain(m, b) * len(f"{b['number']:03d}{b['file']}"),
    "caught": caught,
    "its type": lambda m, b: plain(m, b) * (2.0 if type(b["file"]) is str else 1.0),
    "kept": kept,
    "copied": copied,
    "hashed": lambda m, b: plain(m, b) * float(b["number"] in {0, 2, 4}),
    "a comparison": lambda m, b: plain(m, b) * (2.0 if b["file"] == "a 3" else 1.0),
    "its bytes": lambda m, b: plain(m, b) * sum(b["file"].encode()),
}


def batch(i: int) -> dict[str, Any]:
    return {"x": X[i], "file": f"a {i}", "number": i}


def trained(loss: Any, bridged: bool, make: Any = batch, **options: Any) -> tuple[list[float], int]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step: Any = (
        detente.compile(model, loss, optimizer, example_batch=make(0), quiet=True, **options)
        if bridged
        else eager(model, loss, optimizer)
    )
    losses = [float(step(make(i))) for i in range(6)]
    return losses, len(step.programs) if bridged else 0


def test_micro_batches_have_a_program_for_each_value() -> None:
    def make(i: int) -> dict[str, Any]:
        return {"x": X[i], "file": f"a {i % 2}"}

    assert both(plain, make, accumulate=2) == 2


def both(loss: Any, make: Any = batch, **options: Any) -> int:
    expected, _ = trained(loss, False, make)
    found, programs = trained(loss, True, make, **options)
    assert found == pytest.approx(expected, rel=2e-5, abs=1e-7)
    return programs


@pytest.mark.parametrize("certificate", ["full", "none"])
@pytest.mark.parametrize("name", sampled(NOBODY, 2))
def test_nobody_asks_and_one_program_is_for_all(name: str, certificate: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert both(NOBODY[name], certificate=certificate) == 2


@pytest.mark.parametrize("certificate", ["full", "none"])
@pytest.mark.parametrize("name", sampled(SOMEBODY, 5))
def test_somebody_asks_and_has_eagers_answer(name: str, certificate: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert both(SOMEBODY[name], certificate=certificate) == 6


def test_what_is_asked_for_is_told_from_what_is_not() -> None:
    """Each number has a program, and no more than that, though the file is another one as often."""

    def make(i: int) -> dict[str, Any]:
        return {**batch(i), "number": i % 2}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert both(SOMEBODY["the number"], make) <= 3


def test_beside_a_float_that_is_computed_with() -> None:
    def make(i: int) -> dict[str, Any]:
        return {**batch(i), "weight": 0.1 * i}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert both(lambda m, b: plain(m, b) * b["weight"], make) == 2


def test_who_asks_in_another_mode_has_eagers_answer() -> None:
    """Nobody reads the number while the model trains; in eval mode its loss is weighed by it."""

    def loss(m: Any, b: Any) -> Any:
        value = plain(m, b) * b["weight"]
        return value if m.training else value * (2 - math.cos(b["weight"])) * b["number"]

    def run(bridged: bool) -> tuple[list[float], int]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [{**batch(i % 6), "weight": 0.5 + 0.1 * i} for i in range(12)]
        step: Any = (
            detente.compile(model, loss, optimizer, example_batch=batches[0], quiet=True)
            if bridged
            else eager(model, loss, optimizer)
        )
        losses, programs = [], []
        for i, b in enumerate(batches):
            model.train(i // 4 != 1)
            losses.append(float(step(b)))
            programs.append(len(step.programs) if bridged else 0)
        return losses, programs[-1] - programs[7]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, more = run(True)
    assert found == pytest.approx(run(False)[0], rel=2e-5)
    assert more == 0, "the programs of the one mode are not those of the other"


def test_lists_of_files_and_tuples() -> None:
    def make(i: int) -> Any:
        return X[i], [f"{i} {k}" for k in range(12)], (i, b"raw %d" % i)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert both(lambda m, b: m(b[0]).square().mean(), make) == 2


def test_placed_ahead() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    step = detente.compile(
        model, plain, torch.optim.SGD(model.parameters(), lr=0.1), example_batch=batch(0), quiet=True
    )
    found = [float(step(step.place(batch(i)))) for i in range(6)]
    assert found == pytest.approx(trained(plain, False)[0], rel=2e-5, abs=1e-7)
    assert len(step.programs) == 2
