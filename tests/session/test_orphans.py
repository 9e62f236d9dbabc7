"""What a worker leaves behind its end is ended before the next row begins, and its time is the row's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.session import adopting

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux alone has processes that adopt orphans"
)
ROOT = Path(__file__).parents[2]

# A process forks one that computes for 0.3 s of a processor, and ends without waiting for it.
FORKS = """
import os, time
if os.fork() == 0:
    os.setsid()
    while time.process_time() < 0.3:
        pass
    os._exit(0)
"""
BOOKED = f"""
import os, subprocess, sys, time
import psutil
from detente.session import orphans
orphans.adopt()
with orphans.worker():
    subprocess.run([sys.executable, "-c", {FORKS!r}], check=True, start_new_session=True)
    while not [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE]:
        time.sleep(0.01)
    before = os.times()
    assert orphans.end() == ""
after = os.times()
booked = after.children_user + after.children_system - before.children_user - before.children_system
assert booked >= 0.29, booked
assert not psutil.Process().children()
"""


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=500, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_daemon_that_is_started_as_its_worker_ends_does_not_meet_the_next_row(tmp_path: Path) -> None:
    """It could stop a rival's process, or compute beside it."""
    found = json.loads(run(adopting.__file__, "DaemonAtItsEnd", str(tmp_path)).splitlines()[-1])
    assert found["status"] == "ok", found["reason"]
    assert found["running"] == [] and found["children"] == []
    assert "1 process behind its end: ended" in found["left"]


def test_the_time_of_a_helper_that_nobody_waited_for_is_no_load_of_others() -> None:
    run("-c", BOOKED)


def test_children_of_a_program_that_is_not_ours_are_left_alone() -> None:
    run(
        "-c",
        "import subprocess, sys\nfrom detente.session import orphans\n"
        "mine = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "with orphans.worker():\n    assert orphans.end() == ''\n"
        "assert mine.poll() is None\nmine.kill()\nmine.wait()\n",
    )
