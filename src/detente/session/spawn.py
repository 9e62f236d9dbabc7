"""One worker: started in a process group of its own, watched, and brought to an end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from detente.records.codec import dumps, from_json
from detente.records.evidence import Evidence
from detente.records.fault import UsageFault
from detente.records.job import Job
from detente.session.interrupts import Interrupts, Tap
from detente.session.layout import python_for
from detente.session.load import ForeignLoad
from detente.session.package_alone import PACKAGE, package_alone
from detente.session.phase_watch import PhaseWatch
from detente.stacks.catalogue import find_entry
from detente.worker.events import PIPE
from detente.worker.run import is_out_of_memory

# Seconds that a phase may last. Compilation is the long one; what hangs is killed and becomes a failed cell.
LIMITS: dict[str, float] = {
    "start": 60,
    "import": 180,
    "build": 600,
    "first": 1800,
    "second": 900,
    "third": 900,
}
LIMIT = 600.0

# Taken over from the user's environment; everything else is scrubbed, so that a shell's leftovers
# (XLA_FLAGS, TORCH_LOGS, OMP_*) do not decide a verdict.
_KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "DETENTE_HOME",
    "NVIDIA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
    "HF_HOME",
    "CC",
    "CXX",
)

# The frameworks' own telemetry and hub look-ups, off; hashing fixed, so that set order does not differ by process.
_FIXED = {
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "ENABLE_RUNTIME_UPTIME_TELEMETRY": "0",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


@dataclass(frozen=True)
class Spawned:
    """How a worker ended: its evidence (written by us when it died without), its life and its environment."""

    evidence: Evidence
    started: float
    wall_s: float
    foreign: float
    environment: dict[str, str]
    killed_by_user: bool = False


def spawn(
    job: Job,
    log: Path,
    interrupts: Interrupts | Tap,
    on_phase: Callable[[str], None],
    limits: dict[str, float] | None = None,
    cpus: tuple[int, ...] = (),
    memory_cap: int | None = None,
) -> Spawned:
    """Run one job to its end and return what it left. Never raises for anything that the worker does."""
    environment = worker_environment(job, cpus, memory_cap)
    log.parent.mkdir(parents=True, exist_ok=True)
    job_file = log.with_suffix(".job.json")
    job_file.write_text(dumps(job))
    read, write = os.pipe()
    load, started, begun = ForeignLoad(), time.time(), time.monotonic()
    python = python_for(find_entry(job.cell.stack)) or Path(sys.executable)
    with log.open("wb") as output:
        child = subprocess.Popen(
            [str(python), "-m", "detente.worker", str(job_file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            env={**environment, PIPE: str(write)},
            start_new_session=True,
        )
        os.close(write)
        watch = _Watch(child, {**LIMITS, **_user_limits(), **(limits or {})}, on_phase)
        with os.fdopen(read, "rb", buffering=0) as events:
            watch.follow(events, interrupts)
        _end_group(child)
    wall = time.monotonic() - begun
    evidence = watch.evidence or _obituary(watch, child.returncode, log)
    if evidence.window is not None and watch.window.over:
        seen = watch.window
        evidence = replace(
            evidence,
            window=replace(evidence.window, parent_wall_ns=seen.wall_ns, parent_cpu_ns=seen.cpu_ns),
        )
    return Spawned(evidence, started, wall, load.share(), environment, watch.killed_by_user)


def _user_limits() -> dict[str, float]:
    """``DETENTE_PHASE_LIMIT=first=3600,*=900``: seconds per phase, for machines slower than the table expects."""
    pairs = (part.partition("=") for part in os.environ.get("DETENTE_PHASE_LIMIT", "").split(",") if part)
    try:
        return {name.strip(): float(seconds) for name, _, seconds in pairs}
    except ValueError:
        raise UsageFault(
            f"DETENTE_PHASE_LIMIT is {os.environ['DETENTE_PHASE_LIMIT']!r}",
            "write phase=seconds, by comma: first=3600,*=900",
        ) from None


class _Watch:
    """Reads a worker's events; sleeps between them; kills when a phase lasts too long or the user says so twice."""

    def __init__(
        self, child: subprocess.Popen[bytes], limits: dict[str, float], on_phase: Callable[[str], None]
    ) -> None:
        self.child, self.limits, self.on_phase = child, limits, on_phase
        self.phase, self.evidence = "start", None
        self.timed_out: float | None = None
        self.killed_by_user = False
        self.window = PhaseWatch(child.pid, "steady")
        self._deadline = time.monotonic() + self._limit()

    def _limit(self) -> float:
        return self.limits.get(self.phase, self.limits.get("*", LIMIT))

    def follow(self, events: IO[bytes], interrupts: Interrupts | Tap) -> None:
        buffer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(events, selectors.EVENT_READ)
            selector.register(interrupts.fd, selectors.EVENT_READ)
            while True:
                ready = selector.select(max(0.0, self._deadline - time.monotonic()))
                if not ready:
                    self.timed_out = self._limit()
                    self._kill()
                    return
                for key, _ in ready:
                    if key.fd == interrupts.fd:
                        interrupts.drain()
                        if interrupts.count >= 2:
                            self.killed_by_user = True
                            self._kill()
                            return
                    else:
                        data = os.read(events.fileno(), 1 << 20)
                        if not data:
                            return
                        *lines, buffer = (buffer + data).split(b"\n")
                        for line in lines:
                            self._hear(line)

    def _hear(self, line: bytes) -> None:
        event = json.loads(line)
        if event["event"] == "phase":
            self.phase = event["name"]
            self.window.hear(self.phase)
            self._deadline = time.monotonic() + self._limit()
            self.on_phase(self.phase)
        else:
            self.evidence = from_json(Evidence, event["evidence"])

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Wait for the worker, then for whatever it left behind: Inductor keeps a pool of compile processes."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _obituary(watch: _Watch, code: int, log: Path) -> Evidence:
    """The evidence of a worker that left none."""
    tail = log.read_bytes()[-4000:].decode(errors="replace") if log.exists() else ""
    if watch.killed_by_user:
        return Evidence("failed", watch.phase, "stopped by the user")
    if watch.timed_out is not None:
        return Evidence(
            "failed",
            watch.phase,
            f"no progress in phase {watch.phase!r} for {watch.timed_out:g} s: killed; its log is {log}",
        )
    if is_out_of_memory(tail):
        return Evidence(
            "oom", watch.phase, f"out of memory in phase {watch.phase!r} (exit {code}); its log is {log}"
        )
    if code < 0:
        name = signal.Signals(-code).name
        more = ": the kernel kills so when memory runs out" if -code == signal.SIGKILL else ""
        return Evidence(
            "failed", watch.phase, f"killed by {name} in phase {watch.phase!r}{more}; its log is {log}"
        )
    return Evidence(
        "failed", watch.phase, f"ended with exit code {code} in phase {watch.phase!r}; its log is {log}"
    )


def worker_environment(job: Job, cpus: tuple[int, ...], memory_cap: int | None) -> dict[str, str]:
    """The scrubbed environment of a worker: a few variables of the user's, fixed ones, and the stack's own."""
    entry = find_entry(job.cell.stack)
    own = entry.environment == "default"
    paths = [str(PACKAGE.parent if own else package_alone())]
    if own and os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    chosen = {k: os.environ[k] for k in _KEPT if k in os.environ}
    return {
        **chosen,
        **_FIXED,
        **entry.variables,
        **{variable: str(Path(job.cache) / part) for variable, part in entry.caches.items()},
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(job.threads),
        "MKL_NUM_THREADS": str(job.threads),
        "DETENTE_PARENT": str(os.getpid()),
        **({"DETENTE_AFFINITY": ",".join(map(str, cpus))} if cpus else {}),
        **({"DETENTE_MEMORY_CAP": str(memory_cap)} if memory_cap else {}),
    }
