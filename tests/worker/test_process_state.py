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


# A thread that sleeps on the first core beside one that computes on all of them; then both compute.
COMPUTING = """
import json, os, threading, time
from detente.worker.process_state import computing, take_state
everywhere = sorted(os.sched_getaffinity(0))
asked, done = threading.Event(), threading.Event()
def work(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
def helper():
    os.sched_setaffinity(0, everywhere[:1])
    asked.wait()
    work(0.2)
    done.set()
    time.sleep(60)
threading.Thread(target=helper, daemon=True).start()
time.sleep(0.1)
states = [take_state()]
work(0.2)
states.append(take_state())
asked.set()
work(0.2)
done.wait()
states.append(take_state())
print(json.dumps([everywhere, *(computing(*pair) for pair in zip(states, states[1:]))]))
"""


def test_whoever_sleeps_does_not_compute() -> None:
    done = subprocess.run([sys.executable, "-c", COMPUTING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    everywhere, alone, both = json.loads(done.stdout)
    assert alone == [everywhere] and sorted(both) == sorted([everywhere[:1], everywhere])
