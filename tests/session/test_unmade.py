"""A model that does not run is one message and one try, not one for every row and block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

BAD = """
import torch

def build():
    module = torch.nn.Linear(4, 3)
    return module, lambda m, b: m(b["x"]).mean(), {"x": torch.ones(2, 5)}
"""


def bad(folder: Path) -> str:
    (folder / "bad.py").write_text(BAD)
    return f"{folder / 'bad.py'}:build"


def test_a_bad_model_is_told_once_with_its_line(detente: Any, tmp_path: Path) -> None:
    done = detente("compare", bad(tmp_path), "--stacks", "torch-eager,torch-compile,detente")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("shapes cannot be multiplied") == 1, done.stderr
    assert "(bad.py:6)" in done.stderr
    # In float64 for the proof, and as it is timed (a model that names its dtypes has the second alone): not by row.
    assert done.stderr.count("prepare took") + done.stderr.count("prepare: prepare failed") == 2
    assert "FileNotFoundError" not in done.stderr and "Traceback" not in done.stderr
    log = Path(done.stderr.split("with the whole error: ")[1].strip())
    assert "RuntimeError: mat1 and mat2" in log.read_text()


@pytest.mark.matrix
def test_beside_a_good_one_its_rows_are_failed_by_that_reason(detente: Any, tmp_path: Path) -> None:
    file = tmp_path / "good.py"
    file.write_text(BAD.replace("ones(2, 5)", "randn(2, 4)"))
    done = detente(
        *("compare", bad(tmp_path), f"{file}:build", "--stacks", "torch-eager", "--blocks", "1"),
        *("--no-aa", "--no-memory", "--format", "json"),
    )
    rows = {Path(c["workload"]).name: c for c in json.loads(done.stdout)["cells"]}
    assert done.returncode == 1, done.stderr  # torch-eager was asked for by name, and one of its rows failed
    assert rows["good.py:build"]["status"] == "ok", rows["good.py:build"]["reason"]
    failed = rows["bad.py:build"]
    assert failed["status"] == "failed" and "shapes cannot be multiplied" in failed["reason"], failed
