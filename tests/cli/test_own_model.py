"""`detente bridge check` of a user's own file: what is wrong in it is said with what to do, not as an exception."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODEL = """
import torch

def make():
    module = torch.nn.Linear(3, 1)
    return module, lambda m, b: m(b).mean(), torch.ones(2, 3), {optimizer}
"""


def check(detente: Any, folder: Path, optimizer: str) -> Any:
    file = folder / "mine.py"
    file.write_text(MODEL.replace("{optimizer}", optimizer))
    return detente("bridge", "check", f"{file}:make")


def test_a_wrong_part_is_named_with_the_order_that_is_right(detente: Any, tmp_path: Path) -> None:
    done = check(detente, tmp_path, "torch.ones(2)")
    assert done.returncode == 1 and done.stdout == ""
    assert "optimizer is a Tensor; return (module, loss, batch)" in done.stderr
    assert "UsageFault" not in done.stderr and "Traceback" not in done.stderr


def test_a_right_one_has_nothing_to_say(detente: Any, tmp_path: Path) -> None:
    done = check(detente, tmp_path, "torch.optim.SGD(module.parameters(), lr=0.1)")
    assert done.returncode == 0, done.stderr


def test_a_model_of_jax_needs_no_bridge(detente):
    from pathlib import Path

    file = Path(__file__).parents[2] / "examples/mlp/in_nnx.py"
    for word in ("check", "tune"):
        done = detente("bridge", word, f"{file}:make")
        assert done.returncode == 2 and "is no model of torch" in done.stderr and not done.stdout, done.stderr


@pytest.mark.parametrize(
    ("loss", "says", "do"),
    [
        ("m(b).log().mean() * 0 - m(b).sum() / 0", "the loss of its first batch is", "only a finite loss"),
        ("m(b).mean().detach()", "no parameter has a gradient of the loss", "take detach()"),
    ],
)
def test_a_loss_that_nothing_can_be_held_against_is_refused_with_what_to_do(
    detente: Any, tmp_path: Path, loss: str, says: str, do: str
) -> None:
    """The first was "not the same function" of eager PyTorch's own row, and "the reference's is" finite."""
    file = tmp_path / "mine.py"
    file.write_text(MODEL.replace("m(b).mean()", loss).replace("{optimizer}", "None"))
    row = ("--stacks", "torch-eager", "--blocks", "1", "--no-aa", "--no-memory")
    done = detente("compare", f"{file}:make", *row)
    assert done.returncode == 1 and says in done.stderr and do in done.stderr, done.stderr
    assert "Error" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["json.py", "random.py", "torch.py"])
def test_a_file_of_the_users_in_the_current_folder_is_no_library(tmp_path: Path, name: str) -> None:
    """`python -m` looks there first: "this is a bug in detente", of a json.py that was nobody's business."""
    (tmp_path / name).write_text("raise SystemExit('it ran')")
    (tmp_path / "mine.py").write_text(MODEL.replace("{optimizer}", "None"))
    done = subprocess.run(
        [sys.executable, "-m", "detente", "compare", "mine.py:make", "--stacks", "torch-eager", "--dry-run"],
        cwd=tmp_path,
        env={**os.environ, "DETENTE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "mine.py:make" in done.stdout, done.stderr


def test_a_file_without_its_function_is_told_what_is_missing(detente: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODEL.replace("{optimizer}", "None"))
    done = detente("compare", str(file), "--dry-run")
    assert done.returncode == 2 and "which function of it makes the model is not said" in done.stderr
    file = file.rename(tmp_path / "a,b.py")
    done = detente("compare", f"{file}:make", "--dry-run")
    assert done.returncode == 2 and "a file whose own name has a comma" in done.stderr, done.stderr


def test_a_row_that_a_model_of_one_framework_has_not_says_how_it_would(detente: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODEL.replace("{optimizer}", "None"))
    done = detente("compare", f"{file}:make", "--stacks", "torch-eager,jax", "--dry-run")
    assert done.returncode == 0 and "in flax: a pair names a function of each" in done.stdout, done.stdout
