"""What the kernel says of a worker and of what it started."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from detente.worker.process_state import take_state


def test_a_helper_on_other_cores_is_seen_however_little_it_gets() -> None:
    everywhere = set(range(os.cpu_count() or 1))
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        if everywhere == {min(mine)}:
            pytest.skip("one core: there is no other one to escape to")
        before = take_state().affinity
        code = f"import os, time; os.sched_setaffinity(0, {everywhere}); print(flush=True); time.sleep(60)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as helper:
            assert helper.stdout is not None
            helper.stdout.readline()
            during = take_state().affinity
            helper.kill()
        assert before == ((min(mine),),) and tuple(sorted(everywhere)) in during
        deadline = time.monotonic() + 10
        while take_state().affinity != before:
            assert time.monotonic() < deadline
    finally:
        os.sched_setaffinity(0, mine)
