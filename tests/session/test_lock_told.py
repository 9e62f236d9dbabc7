"""A session that waits for another one says so, also where nobody watches a terminal."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path


def test_the_wait_is_told_into_a_pipe(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(os.getpid()))
        file.flush()
        child = subprocess.Popen(
            [sys.executable, "-m", "detente", "compare", "gemm", "--size", "tiny", "--stacks", "torch-eager"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DETENTE_HOME": str(tmp_path), "DETENTE_LOCK": str(lock)},
        )
        try:
            assert child.stderr is not None
            line = child.stderr.readline()
            assert f"process {os.getpid()}) is timing on this machine; waiting" in line, line
            assert "DETENTE_LOCK" in line and str(lock) in line
        finally:
            child.terminate()
            child.communicate(timeout=60)
