"""``tune=True`` and ``detente bridge tune``: really measured, remembered, and found by programs that do not ask."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from detente import bridge
from detente.bridge.choose.forms import FORMS

MODEL = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.seen += 2**40
        return x + self.down(torch.relu(self.up(self.norm(x))))


def loss(model, batch):
    return model(batch[0]).sub(batch[1]).pow(2).mean()


def training():
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(9))).double()
    batch = (torch.randn(4, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64))
    return model, loss, batch, torch.optim.AdamW(model.parameters(), lr=1e-2)
"""


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model above, compiled with a cache folder of this test's own."""
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "deep.py"
    file.write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deep", raising=False)
    deep = importlib.import_module("deep")

    def make(**options: Any) -> tuple[Any, Any]:
        model, loss, batch, optimizer = deep.training()
        options = {"certificate": "none", "seed": 0, **options}
        return bridge.compile(model, loss, optimizer, example_batch=batch, **options), batch

    return make


def choices(folder: Path) -> list[Any]:
    return [json.loads(f.read_text()) for f in (folder / "cache" / "choices").glob("*.json")]


def test_tuning_measures_remembers_and_takes_the_place_of_the_rule(compiled: Any, tmp_path: Path) -> None:
    plain, batch = compiled()
    assert not plain.choice.measured and not plain.programs[0].cached
    tuned, _ = compiled(tune=True)
    rows = {c.form: c for c in tuned.choice.considered}
    assert tuned.choice.measured and set(rows) == set(FORMS)
    assert all(c.seconds is not None and c.seconds > 0 and c.peak_bytes for c in rows.values())
    assert tuned.choice.form == min(rows, key=lambda f: rows[f].seconds)
    assert [c["form"] for c in choices(tmp_path)] == [tuned.choice.form]
    # measuring ran on copies: the state is where it was, int64 buffers included
    assert [float(tuned(batch)) for _ in range(3)] == pytest.approx(
        [float(plain(batch)) for _ in range(3)], rel=1e-12
    )
    assert int(tuned.state_dict()["3.seen"]) == 3 * 2**40
    later, _ = compiled()
    assert later.choice == tuned.choice and later.programs[0].cached


def test_a_choice_outlives_the_program_and_replaces_one_of_the_rule(compiled: Any, tmp_path: Path) -> None:
    tuned, _ = compiled(tune=True)
    assert not tuned.programs[0].uncached, "and it is written by now"
    for file in (tmp_path / "cache").glob("*.program"):
        file.unlink()
    again, _ = compiled()
    assert not again.programs[0].uncached
    assert again.choice == tuned.choice and not again.programs[0].cached
    (kept,) = (tmp_path / "cache" / "choices").glob("*.json")
    text = kept.read_text()
    kept.unlink()
    for file in (tmp_path / "cache").glob("*.program"):
        file.unlink()
    ruled, _ = compiled()
    assert not ruled.choice.measured and not ruled.programs[0].uncached
    kept.write_text(text)  # as if another process had tuned meanwhile
    last, _ = compiled()
    assert last.choice == tuned.choice and not last.programs[0].cached


@pytest.mark.long
def test_a_form_that_is_asked_for_is_neither_measured_nor_remembered(compiled: Any, tmp_path: Path) -> None:
    compiled(tune=True)
    asked, _ = compiled(form="rolled+full")
    assert (asked.choice.form, asked.choice.measured, asked.choice.why) == ("rolled+full", False, "asked for")
    assert len(choices(tmp_path)) == 1


def test_a_model_of_one_form_is_tuned_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENTE_BRIDGE_CACHE", str(tmp_path))
    model = nn.Linear(3, 2)
    step = bridge.compile(
        model,
        lambda m, x: m(x).pow(2).sum(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        example_batch=torch.ones(2, 3),
        certificate="none",
        tune=True,
    )
    assert (step.choice.form, step.choice.why) == ("unrolled", "the only form that is possible and fits")


@pytest.mark.long
def test_what_was_faster_is_timed_in_turns_remembered_and_told(compiled: Any, tmp_path: Path) -> None:
    tuned, batch = compiled(tune=True)
    assert not tuned.choice.beside and not tuned.choice.advice, "nobody asked for it"
    calls: list[str] = []

    def side(name: str, seconds: float) -> Any:
        def run() -> None:
            calls.append(name)
            time.sleep(seconds)

        return run

    tuned.measured_beside(
        {"torch-eager": side("eager", 0.0), "torch-compile": side("compile", 0.3)}, batch, 2
    )
    assert calls == ["eager", "compile", *(["eager"] * 3 + ["compile"] * 3) * 2]
    assert tuned.choice.advice.startswith("stay with torch-eager on this machine: a step takes ")
    assert tuned.choice.advice in str(tuned.choice) and tuned.choice.advice in tuned.choice._repr_html_()
    assert "torch-compile" in str(tuned.choice)
    later, _ = compiled()
    assert later.programs[0].cached and later.choice == tuned.choice
    for file in (tmp_path / "cache").glob("*.program"):
        file.unlink()
    again, _ = compiled()
    assert not again.programs[0].cached and again.choice == tuned.choice
    slow = {"torch-eager": side("eager", 0.2)}
    again.measured_beside(slow, batch, 1)
    assert not again.choice.advice, "nothing to say where this is as fast"


@pytest.mark.matrix
def test_the_command_tunes_for_the_users_own_program(detente: Any, compiled: Any, tmp_path: Path) -> None:
    target = f"{tmp_path / 'deep.py'}:training"
    done = detente("bridge", "tune", target, "--format", "json", DETENTE_BRIDGE_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert "tune unrolled" in done.stderr, done.stderr  # what takes long says what it does
    told = json.loads(done.stdout)
    assert told["schema"] == "detente/bridge-tune/1" and told["folder"] == str(tmp_path / "cache")
    assert told["choice"]["measured"] and len(told["choice"]["considered"]) == len(FORMS)
    beside = dict(told["choice"]["beside"])
    assert set(beside) == {"torch-eager", "torch-compile", "detente"} and min(beside.values()) > 0
    step, _ = compiled()
    assert step.choice.measured and step.choice.form == told["choice"]["form"]
    assert dict(step.choice.beside) == beside, "a later program is told what was measured"
    assert bool(step.choice.advice) == (beside["detente"] > 1.05 * min(beside.values()))
    for program in (tmp_path / "cache").rglob("*.program"):
        program.unlink()  # this process compiles otherwise than a user's (tests/quick_xla.py)
    text = detente("bridge", "tune", target, DETENTE_BRIDGE_CACHE=str(tmp_path / "cache"))
    assert text.stdout.startswith(f"{step.choice.form}: {step.choice.why}") and "remembered in" in text.stdout


PICTURES = """
import torch
from torch import nn


def training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))
    batch = (torch.randn(2, 3, 16, 16), torch.tensor([1, 3]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), batch, optimizer
"""


@pytest.mark.matrix
def test_pictures_are_timed_with_channels_last_too(detente: Any, tmp_path: Path) -> None:
    """Where that is what PyTorch is fastest with, staying with it means with that."""
    file = tmp_path / "pictures.py"
    file.write_text(PICTURES)
    words = ("bridge", "tune", f"{file}:training", "--format", "json")
    done = detente(*words, DETENTE_BRIDGE_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    beside = dict(json.loads(done.stdout)["choice"]["beside"])
    theirs = {"torch-eager", "torch-compile"}
    assert set(beside) == {"detente", *theirs, *(f"{s}[layout=channels-last]" for s in theirs)}
