"""The prepare job: what its short ways must not change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from detente.stacks.torch_undrawn import undrawn
from tests.sampled import sampled

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("name", sampled(["resnet", "gpt2"], 2))
def test_the_stored_gradients_are_those_of_a_backward_pass_of_their_own(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "backward_pass.py"), name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["status"], told["region"]) == ("ok", "train-step")
    assert told["found"] and told["stored"] == told["found"]
    assert told["worst"] < 1e-10


@pytest.mark.parametrize(
    ("name", "contract"), sampled([("gemm", "gradient"), ("gpt2", "forward")], 2, several=True)
)
def test_the_bound_of_what_a_window_returns_is_one_of_rounding(
    name: str, contract: str, tmp_path: Path
) -> None:
    """The rows of a batch in another order give the rows of an output in another order: no error of a fair run."""
    command = [sys.executable, str(HERE / "own_errors.py"), name, contract, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    rows = [key for key in told["window"] if key.startswith("output") or "batch:" in key]
    assert len(rows) >= 3
    assert all(0 < told["window"][key] < 1e-5 for key in rows), told["window"]
    assert told["kinks"]["met"] == {}


def test_kinks_are_found_and_cleared_in_what_is_prepared(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "own_errors.py"), "resnet50", "gradient", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    kinks = told["kinks"]
    assert kinks["met"]["max_pool2d_with_indices"] == 1 and kinks["moved"] == kinks["met"]["relu"] > 5
    assert kinks["left"] == 0 and 0 < kinks["furthest"] <= 0.0200001 and kinks["nearest"] > 1e-6
    gradients = [error for key, error in told["three"].items() if key.startswith("gradient")]
    assert len(gradients) > 30 and max(gradients) < 1e-4


def test_a_module_built_undrawn_holds_zeros_where_it_would_hold_draws() -> None:
    def build() -> torch.nn.Module:
        modules = [
            torch.nn.Linear(3, 4),
            torch.nn.Embedding(5, 3),
            torch.nn.LSTM(3, 4),
            torch.nn.Conv2d(1, 2, 3),
        ]
        for m in modules:
            for p in m.parameters():
                torch.nn.init.trunc_normal_(p) if p.ndim > 1 else torch.nn.init.normal_(p)
        return torch.nn.ModuleList(modules)

    with undrawn():
        empty = build()
    assert all(not p.any() for p in empty.parameters())
    drawn = build()
    assert all(p.any() for p in drawn.parameters())
    assert [p.shape for p in empty.parameters()] == [p.shape for p in drawn.parameters()]


def test_what_a_module_sets_without_drawing_is_kept() -> None:
    with undrawn():
        norm = torch.nn.BatchNorm1d(3)
    assert torch.equal(norm.weight.detach(), torch.ones(3)) and torch.equal(norm.running_var, torch.ones(3))
