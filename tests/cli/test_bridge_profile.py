"""`detente bridge profile`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

MODEL = """
import torch


def make():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    batch = (torch.randn(4, 8), torch.randint(3, (4,)))
    loss = lambda m, b: torch.nn.functional.cross_entropy(m(b[0]), b[1])
    return model, loss, batch, torch.optim.AdamW(model.parameters())


def refused():
    model, loss, batch, optimizer = make()
    return model, lambda m, b: loss(m, b) if loss(m, b) > 0 else -loss(m, b), batch, optimizer
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path / "mine.py"


def test_both_sides_of_a_users_own_model(detente: Any, file: Path) -> None:
    done = detente("bridge", "profile", f"{file}:make", "--format", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["schema"] == "detente/bridge-profile/1" and not told["missing"]
    for label in ("detente", "torch-eager"):
        side = told["sides"][label]
        assert side["by_work"]["products"] > 0 and side["by_work"]["optimizer"] > 0, label
        assert sum(side["by_work"].values()) == pytest.approx(sum(side["by_direction"].values()))
        assert {"0", "2"} <= {row["path"] for row in side["by_part"]}, label
        assert side["step_s"] > 0 and side["cpu_s"] > 0 and side["threads"] >= 1


def test_what_the_bridge_refuses_is_said_without_a_traceback(detente: Any, file: Path) -> None:
    done = detente("bridge", "profile", f"{file}:refused")
    assert done.returncode != 0 and not done.stdout
    assert "could not be profiled" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_model_of_jax_and_a_size_that_there_is_not(detente: Any) -> None:
    flax = Path(__file__).parents[2] / "examples/mlp/in_nnx.py"
    done = detente("bridge", "profile", f"{flax}:make")
    assert done.returncode == 2 and "is no model of torch" in done.stderr, done.stderr
    done = detente("bridge", "profile", "gpt2", "--size", "huge")
    assert done.returncode == 2 and "huge" in done.stderr and "Traceback" not in done.stderr
