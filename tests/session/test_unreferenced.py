"""Where an fp64 reference does not fit, two of every kind of layer are proved instead, and the row says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long  # one session of three rows, at two depths

SCRIPT = Path(__file__).with_name("unreferenced.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "torch-eager", "jax", f"{SCRIPT}:Shallow"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "DETENTE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_fair_row_is_proved_with_two_layers_and_says_so(found: dict[str, Any]) -> None:
    for row in found["rows"][:2]:
        assert row["status"] == "ok", row
        assert (row["function"], row["precision"]) == ("passed", "passed")
        assert row["at"] == "tiny,layers=2"
        assert row["tensors"] > 50
    assert any("is proved at tiny,layers=2" in text and "GB" in text for text in found["said"])


def test_what_leaves_layers_out_behind_the_second_is_void(found: dict[str, Any]) -> None:
    """The proof with two layers passes it; its losses are not the others'."""
    row = found["rows"][2]
    assert row["label"] == "Shallow"
    assert row["precision"] == "passed"
    assert row["status"] == "void" and "losses-apart" in row["void"], row


def test_no_reference_was_made_at_the_timed_size(found: dict[str, Any]) -> None:
    kinds = [(kind, size) for kind, _, size, _ in found["processes"]]
    assert ("prove", "tiny,layers=2") in kinds and ("time", "tiny,layers=6") in kinds
    assert any("tiny,layers=6 prepare: weights took" in text for text in found["said"])
    assert not any("tiny,layers=6 prepare: prepare" in text for text in found["said"])
