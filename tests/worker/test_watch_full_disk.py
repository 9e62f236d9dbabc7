"""A disk that takes nothing more says nothing of a row: the probe's error is the machine's, and goes up."""

from __future__ import annotations

import errno
import subprocess
import sys
import types
from typing import Any

import pytest

from detente.session.disk import refuse_full_disk
from detente.worker.probes import run_probes

# The trace of a step is written into TMPDIR, of which this process may write a kilobyte a file: the profiler says
# nothing of a trace that it could not write.
WATCHED = """
import resource, signal, sys
import jax, jax.numpy as jnp
from detente.worker.watch.in_jax import watch
step = jax.jit(lambda x: x * 2)
step(jnp.ones(3)).block_until_ready()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
try:
    print("told", watch(lambda: step(jnp.ones(3)).block_until_ready()))
except OSError as error:
    print("errno", error.errno, error)
except Exception as error:
    print("other", type(error).__name__, error)
"""


def run(code: str, **environment: str) -> str:
    import os

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
        check=False,
    )
    return done.stdout.strip() or done.stderr[-1500:]


def test_a_trace_that_cannot_be_written_is_an_error_of_the_system() -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    assert run(WATCHED).startswith(f"errno {errno.EFBIG}"), run(WATCHED)


def test_no_folder_of_temporary_files_is_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    from detente.worker.watch import in_jax

    def none() -> Any:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(in_jax.tempfile, "TemporaryDirectory", none)
    with pytest.raises(OSError, match="No space left on device") as error:
        in_jax._temporary()
    assert error.value.errno == errno.ENOSPC


def probed(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Any:
    module = types.ModuleType("observed")

    def probe(*_: Any) -> Any:
        raise error

    module.probe = probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "detente.worker.probes.observed", module)
    return run_probes(("observed",), None, ())  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG])
def test_it_ends_the_process_and_not_the_row(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    from pathlib import Path

    from detente.records.evidence import Evidence
    from detente.records.fault import MachineFault
    from detente.worker.run import _one_line

    with pytest.raises(OSError) as caught:
        probed(monkeypatch, OSError(number, os.strerror(number)))
    told = Evidence("failed", "probes", _one_line(caught.value))
    with pytest.raises(MachineFault, match="could not write in phase 'probes'"):
        refuse_full_disk(told, Path("log"))


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "gone"), ValueError("no"), RuntimeError("no trace")])
def test_another_error_stays_a_finding(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error" in probed(monkeypatch, error)["observed"]
