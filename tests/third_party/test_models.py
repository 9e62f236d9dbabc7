"""The third-party run's own code, on models of torch alone: what is equal, refused, wrong, crashed and outside."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import nn

from tests import forked
from tests.third_party import attempt as attempting
from tests.third_party import recipe
from tests.third_party.attempt import attempt
from tests.third_party.classes import JUSTIFIED, MISSING, WRONG_LINE, classed
from tests.third_party.compare import chaotic, disagreement
from tests.third_party.page import page
from tests.third_party.row import Below, Float, New, Row


class Noted(nn.Module):
    """Dropout, a buffer that counts and one that nobody filled."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)
        self.register_buffer("never", torch.empty(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.body(x)


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x)
        return out if float(out.detach().sum()) > 0 else -out


def row(name: str, *args: object, **options: object) -> Row:
    return Row("torch", f"{__name__}:{name}", args, {}, [Float(6, 4)], **options)  # type: ignore[arg-type]


def test_equal():
    record = attempt(row("Noted"))
    assert record["outcome"] == "equal", record
    assert record["draws"] == 1 and record["dtype"] == "float32"


def test_refused_has_its_line():
    record = attempt(row("Asks"))
    assert record["outcome"] == "refused" and record["code"] == "control-flow", record
    assert "test_models.py" in record["where"]
    assert classed(record)[0] == JUSTIFIED


def test_outside_says_what_pytorch_says():
    record = attempt(Row("torch", "torch.nn:Linear", (5, 2), {}, [Float(6, 4)]))
    assert record["outcome"] == "outside" and "shapes" in record["detail"], record
    assert attempt(Row("torch", "torch.nn:ReLU", (), {}, [Float(6, 4)]))["outcome"] == "outside"
    assert "ModuleNotFoundError" in attempt(Row("nobody", "nobody:Model"))["detail"]


def test_a_crash_of_the_bridge_is_told(monkeypatch: pytest.MonkeyPatch):
    import detente

    def failing(*args: object, **options: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(detente, "compile", failing)
    record = attempt(row("Noted"))
    assert record["outcome"] == "crashed" and "lost" in record["detail"] and record["where"]


def test_a_wrong_step_is_wrong(monkeypatch: pytest.MonkeyPatch):
    """Of another learning rate: two percent are seen."""
    plain = recipe.optimizer

    def other(model: nn.Module) -> torch.optim.Optimizer:
        made = plain(model)
        made.param_groups[0]["lr"] *= 1.02
        return made

    monkeypatch.setattr(attempting.recipe, "optimizer", other)
    eager = recipe.eager

    def unchanged(*args: object, **options: object) -> recipe.Trained:
        monkeypatch.setattr(attempting.recipe, "optimizer", plain)
        found = eager(*args, **options)  # type: ignore[arg-type]
        monkeypatch.setattr(attempting.recipe, "optimizer", other)
        return found

    monkeypatch.setattr(attempting.recipe, "eager", unchanged)
    record = attempt(row("Noted"))
    assert record["outcome"] == "wrong" and record["worst"] > 10, record


@pytest.mark.parametrize("change", ["loss", "weight", "count", "lost", "shape"])
def test_compare_sees(change: str):
    subject = row("Noted")
    begun = recipe.state(recipe.built(subject, torch.float32))

    def run(nudge: int = 0) -> recipe.Trained:
        return recipe.eager(subject, torch.float32, begun, drawn=True, nudge=nudge)

    found = run()
    assert disagreement(found, run(), begun, run, torch.float32) == ("", 0.0)
    if change == "loss":
        found.losses[3] *= 1.001
    elif change == "weight":
        found.state["body.0.weight"] += 1e-3 * (found.state["body.0.weight"] - begun["body.0.weight"])
    elif change == "count":
        found.state["steps"] += 1
    elif change == "lost":
        del found.state["steps"]
    else:
        found.state["body.3.bias"] = found.state["body.3.bias"][None]
    assert disagreement(found, run(), begun, run, torch.float32)[0]


def test_only_what_has_no_answer_is_chaotic():
    subject = row("Noted")
    begun = recipe.state(recipe.built(subject, torch.float32))

    def nudged(number: int) -> recipe.Trained:
        return recipe.eager(subject, torch.float32, begun, True, number)

    def torn(number: int) -> recipe.Trained:
        """One of the neighbours is far away, which is enough."""
        near = nudged(number)
        near.state["body.0.weight"] += 1e4 * (number == 3)
        return near

    assert not chaotic(nudged(0), begun, nudged)
    assert chaotic(nudged(0), begun, torn)


def test_what_training_does_not_move_is_not_chaotic():
    """A rotation has no gradient under squares; a mask of -inf has no size."""
    begun = {"turns": torch.ones(4), "mask": torch.tensor([0.0, -torch.inf])}
    wanted = recipe.Trained([1.0], dict(begun))
    near = recipe.Trained([1.0], {"turns": torch.ones(4) * (1 + 2**-23), "mask": begun["mask"]})
    assert not chaotic(wanted, begun, lambda number: near)
    assert not disagreement(wanted, wanted, begun, lambda number: near, torch.float32)[0]
    other = recipe.Trained([1.0], {"turns": torch.ones(4), "mask": torch.tensor([-torch.inf, 0.0])})
    assert "mask" in disagreement(other, wanted, begun, lambda number: near, torch.float32)[0]


def test_rows_are_data():
    linear = New("torch.nn:Linear", 4, 2)
    one = Row("torch", "torch.nn:Sequential", (linear,), {}, [Float(6, 4)])
    assert one.signature == Row("torch", "torch.nn:Sequential", (linear,), {}, [Float(6, 4)]).signature
    assert one.signature != Row("torch", "torch.nn:Sequential", (linear,), {}, [Float(7, 4)]).signature
    first, second = recipe.batches(one, torch.float32)[:2]
    assert not torch.equal(first["inputs"][0], second["inputs"][0])
    fixed = Row("torch", "torch.nn:Embedding", (9, 2), {}, [Below(9, 3)], fixed=True)
    made = recipe.batches(fixed, torch.float32)
    assert torch.equal(made[0]["inputs"][0], made[1]["inputs"][0])


def test_classes_know_no_names():
    refused = {"outcome": "refused", "where": "a.py:1", "detail": "no such"}
    assert classed(refused | {"code": "op"})[0] == MISSING
    assert classed(refused | {"code": "op", "where": ""})[0] == WRONG_LINE
    assert classed(refused | {"code": "batch", "where": ""})[0] == MISSING


def test_every_row_is_on_the_page_once():
    listed = [row("Noted", title=title) for title in ("done", "bad", "no", "later")]
    about = {"package": "torch", "version": "1", "torch": "1", "jax": "1", "commit": "abc"}
    records = [
        about | {"name": "Noted done", "outcome": "equal"},
        about | {"name": "Noted bad", "outcome": "wrong", "detail": "loss 1 | 2"},
        about
        | {"name": "Noted no", "outcome": "refused", "code": "op", "where": "a.py:3", "detail": "[op] no"},
    ]
    text = page(records, listed)
    assert "| all | 1 | 1 | 0 | 1 | 0 | 0 | 1 |" in text
    assert (
        "Equal: 1 of 3, 33.3 %" in text
        and "loss 1 \\| 2" in text
        and "| torch Noted no | missing | a.py:3 |" in text
    )


@pytest.mark.filterwarnings("ignore:os.fork")  # these children touch no JAX
def test_a_dead_or_stuck_child_is_a_record():
    def fine() -> dict[str, object]:
        return {"outcome": "equal"}

    def dead() -> dict[str, object]:
        os._exit(3)

    def raises() -> dict[str, object]:
        raise ValueError("mine")

    def stuck() -> dict[str, object]:
        time.sleep(60)
        return {}

    limits = forked.Limits(seconds=20, waiting=3.0)
    records = dict(forked.each([fine, dead, raises, stuck, fine], jobs=2, limits=limits))
    assert [records[i]["outcome"] for i in range(5)] == ["equal", "crashed", "crashed", "crashed", "equal"]
    assert (
        "died" in records[1]["detail"] and "mine" in records[2]["detail"] and "stuck" in records[3]["detail"]
    )
