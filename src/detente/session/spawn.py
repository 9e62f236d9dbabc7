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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import psutil

from detente.environments.place import packages_of
from detente.records.chip import find_chip
from detente.records.codec import dumps, from_json
from detente.records.evidence import Evidence
from detente.records.fault import UsageFault
from detente.records.job import Job
from detente.records.limits import LONGEST_EVIDENCE, check_record
from detente.records.out_of_memory import asked_bytes, is_out_of_memory
from detente.records.window import Window
from detente.session import orphans
from detente.session.disk import refuse_full_disk, writing
from detente.session.interrupts import Interrupts, Tap
from detente.session.layout import python_for
from detente.session.load import ForeignLoad
from detente.session.memory_watch import MemoryWatch
from detente.session.package_alone import PACKAGE, package_alone
from detente.session.phase_watch import PhaseWatch
from detente.session.strays import Strays
from detente.stacks.catalogue import find_entry
from detente.stacks.factors import environment_of
from detente.stacks.own_entry import worker_variable
from detente.worker.events import PIPE

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
# Seconds that a worker has to end after its evidence: enough to close what it opened. What a model left running then
# (a thread, a fork that holds the pipe) would otherwise hold every worker up to the phase limit.
GRACE_S = 5.0
# A worker says once what it kept; a second time is one too many already.
_MOST_KEPT = 8

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

# Where the compilers for chips that are not here lie.
CHIPS_ENVIRONMENT = "chips"

# Steps are timed from the first moment of these: asking who runs reads the whole process table, on one of their cores.
_TIMED = frozenset({"first", "second", "third", "steady"})


@dataclass(frozen=True)
class Spawned:
    """How a worker ended: its evidence (written by us when it died without), its life and its environment."""

    evidence: Evidence
    started: float
    wall_s: float
    foreign: float
    environment: dict[str, str]
    killed_by_user: bool = False
    phases: dict[str, float] = field(default_factory=dict)


def spawn(
    job: Job,
    log: Path,
    interrupts: Interrupts | Tap,
    on_phase: Callable[[str], None],
    limits: dict[str, float] | None = None,
    cpus: tuple[int, ...] = (),
    memory_cap: int | None = None,
) -> Spawned:
    """Run one job to its end and return what it left. Raises for nothing that the worker's own code does; a disk that
    is full, for the worker or for its log, is a MachineFault: no row is to blame for it."""
    environment = worker_environment(job, cpus, memory_cap)
    job_file = log.with_suffix(".job.json")
    with writing(log.parent, "XDG_STATE_HOME"):
        log.parent.mkdir(parents=True, exist_ok=True)
        job_file.write_text(dumps(job))
    read, write = os.pipe()
    load, started, begun = ForeignLoad(), time.time(), time.monotonic()
    python = python_for(find_entry(job.cell.stack), job.cell.arm) or Path(sys.executable)
    memory = MemoryWatch()
    with orphans.worker(), log.open("wb") as output:
        child = subprocess.Popen(
            # -P: a torch.py in the current folder, left there by another row's process or a user's own, is not torch.
            [str(python), "-P", "-m", "detente.worker", str(job_file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(write, *([job.memory] if job.memory >= 0 else [])),
            env={**environment, PIPE: str(write)},
            start_new_session=True,
        )
        os.close(write)
        watch = _Watch(child, {**LIMITS, **_user_limits(), **(limits or {})}, on_phase)
        with os.fdopen(read, "rb", buffering=0) as events:
            watch.follow(events, interrupts)
        peak, left = _end_group(child)
        left = "; ".join(filter(None, (watch.left or left, watch.strays.end(), orphans.end(child.pid))))
    wall = time.monotonic() - begun
    killer = memory.killed(peak)
    evidence = watch.evidence or _obituary(watch, child.returncode, log, killer)
    refuse_full_disk(evidence, log)
    if watch.evidence is not None and left:
        evidence = replace(evidence, left=left)
    if evidence.window is not None:
        evidence = replace(evidence, window=_heard(evidence.window, watch))
    return Spawned(
        evidence, started, wall, load.share(), environment, watch.killed_by_user, watch.phases.seconds
    )


def _heard(window: Window, watch: _Watch) -> Window:
    """The window with what the parent itself knows of it, whatever the worker says there."""
    seen = watch.phases
    return replace(
        window,
        parent_wall_ns=seen.wall_ns,
        parent_cpu_ns=seen.cpu_ns,
        disorder=seen.wrong(),
        kept=tuple(watch.kept),
    )


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
        self.left, self.spoken = "", ""
        self.kept: list[str] = []
        self.phases, self.strays = PhaseWatch(child.pid, "steady", "window"), Strays(child.pid)
        self._deadline = time.monotonic() + self._limit()

    def _limit(self) -> float:
        return self.limits.get(self.phase, self.limits.get("*", LIMIT))

    def follow(self, events: IO[bytes], interrupts: Interrupts | Tap) -> None:
        # Pieces of a line whose end has not come. Joined only when it does: joined at each read, a line of many MiB
        # that comes in pipefuls was copied a thousand times, which took a minute of the parent's core.
        pieces: list[bytes] = []
        held = 0
        with selectors.DefaultSelector() as selector:
            selector.register(events, selectors.EVENT_READ)
            selector.register(interrupts.fd, selectors.EVENT_READ)
            while True:
                ready = selector.select(max(0.0, self._deadline - time.monotonic()))
                if not ready:
                    if self.evidence is not None:
                        self.left = _left_behind(self.child)
                        return
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
                        *ends, rest = data.split(b"\n")
                        for end in ends:
                            self._hear(b"".join((*pieces, end)))
                            pieces, held = [], 0
                        pieces.append(rest)
                        held += len(rest)
                        if held > LONGEST_EVIDENCE:
                            self.spoken = f"its last line has no end after {held >> 20} MiB"
                            self._kill()
                            return

    def _hear(self, line: bytes) -> None:
        """One event. The pipe can be found by the user's own code, so that anything may stand there: what is no event
        of ours is remembered for the obituary and ends nothing."""
        if self.evidence is not None:
            return  # a fork that came back tells the same again
        try:
            event = json.loads(line)
            if event["event"] == "phase":
                self.phase = str(event["name"])[:200]
                self.phases.hear(self.phase)
                self._deadline = time.monotonic() + self._limit()
                what = event.get("what")  # of a long one, its part
                self.on_phase(f"{self.phase}: {what}"[:200] if what else self.phase)
                if self.phase not in _TIMED:
                    self.strays.look()
            elif event["event"] == "kept":
                if len(self.kept) < _MOST_KEPT:
                    self.kept.append(str(event["said"])[:300])
            else:
                found = from_json(Evidence, event["evidence"])
                check_record(found, "Evidence")
                _check_size(line, found)
                self.evidence = found
                self.strays.look()
                self.phases.hear("done")
                self._deadline = time.monotonic() + GRACE_S
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self.spoken = f"it wrote what is no event: {str(error) or type(error).__name__}"[:300]

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)


def _check_size(line: bytes, evidence: Evidence) -> None:
    """Raises ValueError for evidence that no reader of the session would take: it would be kept, and the session
    lost."""
    # Written by us a character may take three times as much.
    size = len(dumps(evidence)) if 3 * len(line) > LONGEST_EVIDENCE else 0
    if size > LONGEST_EVIDENCE:
        raise ValueError(
            f"evidence of {size / 2**20:.3g} MiB, and a session holds {LONGEST_EVIDENCE >> 20} MiB of one process"
        )


def _left_behind(child: subprocess.Popen[bytes]) -> str:
    """What still runs of a worker that has told its evidence, in words."""
    threads, processes = 0, 0
    for process in psutil.process_iter():
        try:
            if process.pid == child.pid:
                threads = process.num_threads()
            elif os.getsid(process.pid) == child.pid and process.status() != psutil.STATUS_ZOMBIE:
                processes += 1
        except (psutil.Error, OSError):
            continue
    found = [f"{threads} threads"] * (threads > 0) + [f"{processes} child processes"] * (processes > 0)
    return f"{' and '.join(found) or 'something'} still running {GRACE_S:g} s after the evidence: ended"


def _end_group(child: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait for the worker, then end whatever it left behind: Inductor keeps a pool of compile processes. Returns the
    most memory that the worker had resident, in bytes, as the kernel accounts it at the end, and what did not end by
    itself."""
    deadline = time.monotonic() + GRACE_S
    peak = _reap(child)
    while child.returncode is None and time.monotonic() < deadline:
        time.sleep(0.02)
        peak = _reap(child)
    left = _left_behind(child) if child.returncode is None else ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    while child.returncode is None:
        time.sleep(0.005)
        peak = _reap(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    return peak, left


def _reap(child: subprocess.Popen[bytes]) -> int:
    # wait4 instead of Popen.wait: it alone tells the peak of this one child.
    if child.returncode is not None:
        return 0
    try:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    except ChildProcessError:
        child.wait()
        return 0
    if pid == 0:
        return 0
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024


# Signals that somebody else sends: an administrator, a batch system, a container that is stopped.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU})


def _obituary(watch: _Watch, code: int, log: Path, short_of_memory: str) -> Evidence:
    """The evidence of a worker that left none."""
    tail = _tail(log)
    phase = watch.phase
    if watch.killed_by_user:
        return Evidence("failed", phase, "stopped by the user")
    if watch.timed_out is not None:
        return Evidence(
            "failed",
            phase,
            f"no progress in phase {phase!r} for {watch.timed_out:g} s: killed; its log is {log}",
        )
    if is_out_of_memory(tail):
        asked = asked_bytes(tail)
        more = "" if asked is None else f", asking for {asked / 1e9:.3g} GB"
        return Evidence(
            "oom", phase, f"out of memory in phase {phase!r}{more} (exit {code}); its log is {log}"
        )
    if code == -signal.SIGKILL and short_of_memory:
        return Evidence(
            "oom", phase, f"out of memory in phase {phase!r}: {short_of_memory}; its log is {log}"
        )
    if code < 0 and not watch.spoken:
        name = signal_name(-code)
        outside = -code in _FROM_OUTSIDE
        more = ", from outside as far as can be told: `--resume` runs it again" if outside else ""
        return Evidence(
            "failed",
            phase,
            f"killed by {name} in phase {phase!r}{more}; its log is {log}",
            killed=name if outside else "",
        )
    said = f" ({watch.spoken})" if watch.spoken else ""
    return Evidence(
        "failed", phase, f"ended with exit code {code} in phase {phase!r}{said}; its log is {log}"
    )


def _tail(log: Path, most: int = 4000) -> str:
    """The end of a log. What stands before it may be gigabytes: a library that complains in every step."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


def signal_name(number: int) -> str:
    """``SIGKILL``; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def worker_environment(job: Job, cpus: tuple[int, ...], memory_cap: int | None) -> dict[str, str]:
    """The scrubbed environment of a worker: a few variables of the user's, fixed ones, and the stack's own."""
    entry = find_entry(job.cell.stack)
    own = environment_of(entry.environment, job.cell.arm) == "default"
    paths = [str(PACKAGE.parent if own else package_alone())]
    if own and os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    chosen = {k: os.environ[k] for k in _KEPT if k in os.environ}
    chip = find_chip(job.cell.device) if job.kind == "fits" else None
    if chip is not None and (plugins := packages_of(CHIPS_ENVIRONMENT)) is not None:
        paths.append(str(plugins))
    return {
        **chosen,
        **_FIXED,
        **entry.variables,
        **({} if chip is None else {"JAX_PLATFORMS": "cpu", **chip.variables}),
        **worker_variable(entry),
        **{variable: str(Path(job.cache) / part) for variable, part in entry.caches.items()},
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(job.threads),
        "MKL_NUM_THREADS": str(job.threads),
        "DETENTE_PARENT": str(os.getpid()),
        **({"DETENTE_AFFINITY": ",".join(map(str, cpus))} if cpus else {}),
        **({"DETENTE_MEMORY_CAP": str(memory_cap)} if memory_cap else {}),
    }
