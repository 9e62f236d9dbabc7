"""The conformance suite: every stack of the catalogue against stacks/protocol.py."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from detente.session.layout import missing_reason, python_for
from detente.stacks.catalogue import STACKS, find_entry
from tests import quick_xla

CHECK = Path(__file__).with_name("check.py")
NAMES = tuple(
    line.split("def ")[1].split("(")[0]
    for before, line in zip(CHECK.read_text().splitlines(), CHECK.read_text().splitlines()[1:], strict=False)
    if before == "@check"
)

# Each differs from a stack of the default run by a setting alone; `make test-matrix` asks them too.
OUT_OF_THE_BOX = ("torch-eager-default", "torch-compile-model")


@cache
def results(stack: str) -> dict[str, str]:
    entry = find_entry(stack)
    why = missing_reason(entry)
    if why:
        pytest.skip(f"{stack}: {why}")
    source = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    done = subprocess.run(
        [str(python_for(entry)), str(CHECK), stack],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={
            **os.environ,
            **entry.variables,
            "PYTHONPATH": source,
            "OMP_NUM_THREADS": "2",
            "HF_HUB_OFFLINE": "1",
            "XLA_FLAGS": quick_xla.FLAGS,
        },
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("CHECKED ")]
    assert told, done.stderr[-4000:]
    return json.loads(told[-1].removeprefix("CHECKED "))


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("check", NAMES)
@pytest.mark.parametrize(
    "stack", [pytest.param(s, marks=[pytest.mark.matrix] if s in OUT_OF_THE_BOX else []) for s in STACKS]
)
def test_stack(stack: str, check: str) -> None:
    assert results(stack)[check] == "", f"{stack}: {results(stack)[check]}"
