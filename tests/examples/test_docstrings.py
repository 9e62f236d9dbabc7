"""Every ``>>>`` of a docstring is run, and prints what stands below it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import quick_xla

SOURCE = Path(__file__).parents[2] / "src"
FILES = sorted(
    p for p in (SOURCE / "detente").rglob("*.py") if re.search(r"^\s*(\"\"\")?>>> ", p.read_text(), re.M)
)
MODULES = [".".join(p.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for p in FILES]
FIRST_FLOOR = [m for m in MODULES if m.startswith(("detente.bridge", "detente.workloads"))]
# A process each: on the first floor examples import frameworks and write into the bridge's tables, elsewhere none does.
ROOMS = {"first floor": FIRST_FLOOR, "others": [m for m in MODULES if m not in FIRST_FLOOR]}
RUN = Path(__file__).with_name("run_docstrings.py")


def test_there_are_examples_in_both() -> None:
    assert min(len(modules) for modules in ROOMS.values()) > 5


@pytest.mark.parametrize("room", ROOMS)
def test_examples_print_what_they_show(room: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RUN), *ROOMS[room]],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "XLA_FLAGS": quick_xla.FLAGS},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert {m: bad for m, (_, _, bad) in told["ran"].items() if bad} == {}, done.stdout
    assert {m: "skipped" for m, (there, ran, _) in told["ran"].items() if not there == ran > 0} == {}
    if room == "others":
        assert told["frameworks"] == []
