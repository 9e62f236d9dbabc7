"""What the kernel says of a worker and of what it started."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# In a process of its own: the threads of whatever else these tests have loaded stay where they were.
SCRIPT = """
import json, os, subprocess, sys
from detente.worker.process_state import take_state
os.sched_setaffinity(0, range(os.cpu_count()))
everywhere = sorted(os.sched_getaffinity(0))  # all that this machine gives us, whatever the numbers
os.sched_setaffinity(0, everywhere[:1])
before = take_state().affinity
code = f"import os, time; os.sched_setaffinity(0, {everywhere}); print(flush=True); time.sleep(60)"
with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as helper:
    helper.stdout.readline()
    during = take_state().affinity
    helper.kill()
print(json.dumps([everywhere, before, during, take_state().affinity]))
"""


def test_a_helper_on_other_cores_is_seen_however_little_it_gets() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    everywhere, before, during, after = json.loads(done.stdout)
    if len(everywhere) == 1:
        pytest.skip("one core: there is no other one to escape to")
    assert before == after == [everywhere[:1]] and sorted(during) == [everywhere[:1], everywhere]
