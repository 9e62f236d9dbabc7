"""`detente bridge check` of a user's own file: what is wrong in it is said with what to do, not as an exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
