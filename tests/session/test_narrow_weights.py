"""Weights of bf16: written once at two bytes a number, and a row whose products run wide is void."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detente.records.fault import UsageFault
from detente.session.layout import lay_out
from detente.session.request import Request
from detente.worker.tensorfile import map_tensors
from detente.workloads.narrow import is_narrow

STACKS = Path(__file__).with_name("wide_stack.py")
WIDE, HELD_WIDE = f"{STACKS}:Wide", f"{STACKS}:HeldWide"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "detente", "compare", "llama", "--size", "tiny", "--contract", "forward"),
            *("--precision", "bf16-true", "--stacks", f"torch-eager,jax,{WIDE},{HELD_WIDE}"),
            *("--blocks", "1", "--no-memory", "--no-aa", "--format", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "DETENTE_HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")},
    )
    assert done.stdout, done.stderr[-2000:]
    return json.loads(done.stdout), home


@pytest.mark.long
def test_every_row_is_proved_with_narrow_weights(found: tuple[dict[str, Any], Path]) -> None:
    for cell in found[0]["cells"][:2]:
        assert cell["status"] == "ok", cell["reason"]
        assert (cell["parity"]["same_function"], cell["parity"]["same_precision"]) == ("passed", "passed")


@pytest.mark.long
def test_a_row_that_runs_wide_is_void(found: tuple[dict[str, Any], Path]) -> None:
    wide = found[0]["cells"][2]
    assert wide["status"] == "void"
    assert "product-dtypes-differ" in {f["rule"] for f in wide["findings"] if f["severity"] == "void"}


@pytest.mark.long
def test_float32_weights_under_bf16_products_are_other_weights(found: tuple[dict[str, Any], Path]) -> None:
    held = found[0]["cells"][3]
    assert held["status"] == "void"
    assert "weights-differ" in {f["rule"] for f in held["findings"] if f["severity"] == "void"}, held


@pytest.mark.long
def test_the_weights_are_written_in_two_bytes(found: tuple[dict[str, Any], Path]) -> None:
    files = list(found[1].rglob("weights.safetensors"))
    kinds = {all(is_narrow(a) for a in map_tensors(file).values() if a.dtype.kind != "i") for file in files}
    assert kinds == {True, False}, "bf16 as it is timed, float32 for the proof in float64"


def test_nothing_is_trained_in_it() -> None:
    with pytest.raises(UsageFault, match="nothing is trained whose weights have bf16's three digits"):
        lay_out(Request(("llama",), ("torch-eager",), "tiny", precision="bf16-true"))
    with pytest.raises(UsageFault, match="no precision is called 'bf17'") as caught:
        lay_out(Request(("llama",), ("torch-eager",), "tiny", precision="bf17"))
    assert "bf16-true" in caught.value.hint
