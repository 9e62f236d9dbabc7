"""Processes that live at once and step in turns: what they print is no answer, and who ends early stops no other."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIDE = """
import os, sys, time
from turns import serve
name, dies, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
steps = []
def step():
    steps.append(name)
    print("a framework talks", flush=True)
    os.write(1, b"and so does a library of C\\n")
    if len(steps) > dies:
        os._exit(7)
    time.sleep(seconds)
def alone():
    step()
    return {"pid": os.getpid(), "name": name}, step
serve(alone)
"""


@pytest.fixture
def turns(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("turns")


@pytest.fixture
def live(turns):
    """A side by its name, before how many steps it ends, and how long each takes."""
    environ = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    return lambda name, dies=100, seconds=0.0: turns.Live(
        [sys.executable, "-c", SIDE, name, str(dies), str(seconds)], environ
    )


def test_each_side_takes_its_turns_and_tells_its_own_seconds(turns, live):
    with live("slow", seconds=0.05) as slow, live("quick") as quick:
        slow.begin()
        quick.begin()
        assert (slow.alone["name"], quick.alone["name"]) == ("slow", "quick")
        found = turns.in_turns({"slow": slow, "quick": quick}, 4)
    assert [len(steps) for steps in found.values()] == [4, 4]
    assert min(found["slow"]) >= 0.05, "what it slept at least"
    for side in (slow, quick):
        assert not Path(f"/proc/{side.alone['pid']}").exists(), "it ends with the block"


def test_a_side_that_ends_in_its_turns_is_told_and_the_others_go_on(turns, live):
    with live("whole") as whole, live("broken", dies=3) as broken:
        whole.begin()
        broken.begin()
        found = turns.in_turns({"whole": whole, "broken": broken}, 5)
    assert len(found["whole"]) == 5
    assert str(found["broken"]) == "exit code 7"


def test_a_side_that_never_began_is_told(turns, live):
    with live("broken", dies=0) as broken, pytest.raises(turns.Failed, match="exit code 7"):
        broken.begin()


def test_whoever_is_interrupted_leaves_nobody_behind(turns, live):
    with pytest.raises(KeyboardInterrupt), live("long", seconds=600) as long:
        pid = long._process.pid
        raise KeyboardInterrupt
    assert not Path(f"/proc/{pid}").exists()
