"""The study's loop, its pair of models and its page, at a small size: two layers, pictures of 32."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from studies.vit_training.__main__ import run
from studies.vit_training.page import page

ROOT = Path(__file__).parents[2]
TORCH, JAX = (f"{ROOT}/studies/vit_training/in_{name}.py" for name in ("torch", "nnx"))
SMALL = ("--batch", "2", "--layers", "2", "--set", "image=32", "--blocks", "1", "--no-memory", "--no-aa")


def rows_of(done: Any) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return {c["label"]: c for c in json.loads(done.stdout)["cells"]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("attention", "precision", "stacks"),
    [
        ("written", "fp32", "jax"),
        ("written", "fp32", "torch-compile"),
        ("fused", "bf16", "jax,detente"),
    ],
)
def test_the_pair_is_proved(detente: Any, attention: str, precision: str, stacks: str) -> None:
    """Attention written out takes its softmax in float32 on both sides, and JAX's own does whatever it is given; a
    convolution's gradient has another layout than its parameter behind torch.compile."""
    pair = f"{TORCH}:{attention},{JAX}:{attention}"
    more = ("--stacks", stacks, "--precision", precision, "--threads", "1", "--format", "json")
    for row in rows_of(detente("compare", pair, *SMALL, *more, timeout=900)).values():
        assert row["status"] == "ok", row["reason"]
        assert (row["parity"]["same_function"], row["parity"]["same_precision"]) == ("passed", "passed")


@pytest.mark.long
def test_the_published_loss_is_void_and_no_layer_is_blamed(detente: Any) -> None:
    pair = f"{TORCH}:written,{JAX}:as_published"
    done = detente(
        "compare", pair, *SMALL, "--stacks", "jax", "--threads", "1", "--format", "json", timeout=900
    )
    row = rows_of(done)["jax"]
    assert row["status"] == "void" and row["parity"]["same_function"] == "failed", row
    assert "behind" in row["parity"]["layer"], row["parity"]


def loop(mode: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "studies.vit_training.loop", mode, "--batch", "2", "--layers", "1"]
    done = subprocess.run(
        [*command, "--image", "32", "--threads", "1"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_the_studys_loop_tells_less_than_the_work_takes_and_a_loss_of_its_own() -> None:
    torch, jax = loop("torch-eager"), loop("jax")
    assert torch["loss"] == torch["cross_entropy"]
    assert 5 < jax["cross_entropy"] < 15 and jax["loss"] > 1e5
    # What a CPU runs behind the loop's back is waited for at its end; torch has nothing there.
    assert jax["waited_s"] >= jax["told_s"] and jax["left_s"] > torch["left_s"]


def test_its_page_tells_every_figure() -> None:
    size = {"batch": 2, "layers": 1, "image": 32}
    told = {"told_s": 0.01, "loader_s": 0.001, "left_s": 0.2, "waited_s": 0.02, "first_s": 1.0}
    ran = {"mode": "jax", "precision": "fp32", **told, "loss": 3e6, "cross_entropy": 6.9}
    steady = {"median": 0.02, "low": 0.019, "high": 0.021}
    once = {"median": 0.03, "low": None, "high": None}
    rows = [
        {"label": "torch-eager", "status": "ok", "reason": "", "steady_s": {**steady, "median": 0.01}, "findings": []},
        {"label": "torch-compile", "status": "ok", "reason": "", "steady_s": once, "findings": []},
        {"label": "jax", "status": "ok", "reason": "", "steady_s": steady, "findings": []},
        {"label": "detente", "status": "void", "reason": "why", "steady_s": None, "findings": [["r", "void", "w"]]},
    ]  # fmt: skip
    verdicts = [{"a": "torch-eager", "b": "jax", "word": "FASTER", "ratio": 0.5, "low": 0.4, "high": 0.6}]
    found = {"command": "", "rows": rows, "verdicts": verdicts}
    lines = [
        {"part": part, "key": "k", "size": size, "processor": "P", "found": f}
        for part, f in (("loop", ran), ("exhibits", found), ("table", found))
    ]
    other = {**lines[2], "machine": "elsewhere"}
    text = page([*lines, other])
    assert "Machines: A, P; B, P." in text and "| B | k | jax | 20" in text
    assert "| A | jax | fp32 | 1 | 10 (10 to 10) | 20 | 1.0 | 200 | 3e+06 | 6.9 |" in text
    assert "| k | detente | void | `r`: w |" in text
    assert "| A | k | jax | 20 (19 to 21) | 2.00 (1.67 to 2.50), FASTER | ok |" in text
    assert "| A | k | torch-eager | 10 (19 to 21) | 1 | ok |" in text
    assert "| A | k | torch-compile | 30 | not told | ok |" in text


def test_a_comparison_that_was_interrupted_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of its tables once held four rows of `not measured before the session ended`, and were never asked again."""

    def ended(code: int, told: str) -> None:
        done = subprocess.CompletedProcess([], code, stdout=told)
        monkeypatch.setattr("studies.vit_training.__main__.subprocess.run", lambda *a, **k: done)

    for code, told in ((130, "{}"), (3, "{}"), (0, "")):
        ended(code, told)
        with pytest.raises(SystemExit, match=f"exit code {code} and is not stored"):
            run("detente", "compare")
    ended(1, "{}")
    assert run("detente", "compare") == "{}"
