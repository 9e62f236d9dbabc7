"""Stacks that go wrong on purpose; named as ``tests/session/faulty_stacks.py:Killed``."""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from detente.records.folders import cache_folder
from detente.stacks.protocol import Unavailable
from detente.stacks.torch_compile import CompiledRunning, TorchCompile
from detente.stacks.torch_eager import TorchEager, TorchRunning


class _KilledRunning(TorchRunning):
    def step(self, batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Killed(TorchEager):
    """Dies as if the kernel had taken it."""

    running = _KilledRunning


class _ParentRunning(TorchRunning):
    def step(self, batch: Any) -> Any:
        # A child in the worker's process group, as Inductor's compile pool is.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # detente-orphan"])
        os.kill(os.getpid(), signal.SIGKILL)


class KilledWithChildren(TorchEager):
    """Dies and leaves a child behind."""

    running = _ParentRunning


class _KilledWhileCompiling(CompiledRunning):
    def step(self, batch: Any) -> Any:
        threading.Thread(target=_die_beside_a_compiler, daemon=True).start()
        return super().step(batch)


def _die_beside_a_compiler() -> None:
    """Wait until Inductor's own compile processes run, write down which, and be killed."""
    while True:
        children = psutil.Process().children(recursive=True)
        if any(_compiles(child) for child in children):
            Path(os.environ["DETENTE_HOME"], "compile-processes.json").write_text(
                json.dumps([child.pid for child in children])
            )
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)


def _compiles(child: psutil.Process) -> bool:
    try:
        return "cc1plus" in child.name()
    except psutil.Error:  # it ended between the list and the question
        return False


class KilledWhileCompiling(TorchCompile):
    """Dies while Inductor has C++ compilers running."""

    running = _KilledWhileCompiling


class _HangingRunning(TorchRunning):
    def step(self, batch: Any) -> Any:
        time.sleep(3600)


class Hanging(TorchEager):
    """Never comes back."""

    running = _HangingRunning


class _GreedyRunning(TorchRunning):
    def step(self, batch: Any) -> Any:
        # 64 GiB: more than the cap that the test sets, and refused at once by the allocator.
        self.torch.ones(1 << 34)


class Greedy(TorchEager):
    """Asks for more memory than there is."""

    running = _GreedyRunning


class _NanRunning(TorchRunning):
    def loss(self, handle: Any) -> float:
        return math.nan


class Nan(TorchEager):
    """Loses its loss."""

    running = _NanRunning


class _WrongRunning(TorchRunning):
    def outputs(self, handle: Any) -> dict[str, np.ndarray]:
        found = super().outputs(handle)
        return {n: a * np.float32(1.001) if n == "weight" else a for n, a in found.items()}


class Wrong(TorchEager):
    """One gradient is a thousandth too large."""

    running = _WrongRunning


class Absent(TorchEager):
    """Says that it cannot run here."""

    def start(self, device: str, precision: str, threads: int) -> str:
        raise Unavailable("this device has no such unit")


class _RaisingRunning(TorchRunning):
    def step(self, batch: Any) -> Any:
        raise RuntimeError("the planted error\nwith a second line")


class Raising(TorchEager):
    """Raises in its first step."""

    running = _RaisingRunning


class _Killing(TorchRunning):
    """Kills its process in the step that its number says, but only once: a file remembers it."""

    def step(self, batch: Any) -> Any:
        note = Path(os.environ["DETENTE_HOME"], "killed-once")
        if not note.exists():
            note.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(batch)


class LeavesThread(TorchEager):
    """Starts a thread that does not end."""

    def start(self, device: str, precision: str, threads: int) -> str:
        threading.Thread(target=time.sleep, args=(3600,)).start()
        return super().start(device, precision, threads)


class LeavesFork(TorchEager):
    """Starts a copy of itself that holds everything open, the pipe to the parent among it."""

    def start(self, device: str, precision: str, threads: int) -> str:
        if os.fork() == 0:
            time.sleep(3600)
            os._exit(0)
        return super().start(device, precision, threads)


class LeavesDaemon(TorchEager):
    """Starts a process that is nobody's child, in a session of its own."""

    def start(self, device: str, precision: str, threads: int) -> str:
        sleeper = f"import time; time.sleep(3600)  # daemon of {os.getppid()}"
        once = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeper!r}], start_new_session=True)"
        subprocess.run([sys.executable, "-c", once], check=True, start_new_session=True)
        return super().start(device, precision, threads)


class DaemonAtItsEnd(TorchEager):
    """Starts a process of its own session when the interpreter ends, behind everything that it had to tell."""

    def start(self, device: str, precision: str, threads: int) -> str:
        sleeper = f"import time; time.sleep(3600)  # of {os.getppid()} behind its worker"
        atexit.register(subprocess.Popen, [sys.executable, "-c", sleeper], start_new_session=True)
        return super().start(device, precision, threads)


class LeavesTwin(TorchEager):
    """Starts a copy of itself that goes on as if it were the worker, and tells its evidence too."""

    def start(self, device: str, precision: str, threads: int) -> str:
        os.fork()
        return super().start(device, precision, threads)


class Babbling(TorchEager):
    """Writes into the pipe what is no event."""

    def start(self, device: str, precision: str, threads: int) -> str:
        pipe = int(os.environ["DETENTE_EVENTS_FD"])
        os.write(pipe, b'not an event\n{"event": 7}\n[]\n{"event": "phase"}\n\xff\n' + b"[" * 5000 + b"\n")
        return super().start(device, precision, threads)


class Lying(TorchEager):
    """Ends with evidence of its own making, which no record can hold."""

    def start(self, device: str, precision: str, threads: int) -> str:
        pipe = int(os.environ["DETENTE_EVENTS_FD"])
        told = {"status": "ok", "phase": "done", "samples": [{"wall_ns": 0, "steps": 1}]}
        os.write(pipe, json.dumps({"event": "evidence", "evidence": told}).encode() + b"\n")
        os._exit(0)


class Endless(TorchEager):
    """Writes a line without an end."""

    def start(self, device: str, precision: str, threads: int) -> str:
        pipe = int(os.environ["DETENTE_EVENTS_FD"])
        while True:
            os.write(pipe, b" " * (1 << 20))


class FullDisk(TorchEager):
    """Meets a full disk."""

    def start(self, device: str, precision: str, threads: int) -> str:
        with open("/dev/full", "w") as file:
            file.write("x")
        return super().start(device, precision, threads)


class KilledByMemory(TorchEager):
    """Is killed as the kernel kills: without a word, while it holds memory."""

    def start(self, device: str, precision: str, threads: int) -> str:
        self.held = np.ones(300 << 17)  # 300 MiB of float64, touched
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


class KilledOnce(TorchEager):
    """Is killed once, from outside as far as anybody can tell."""

    running = _Killing


class _ForwardForMemory(TorchRunning):
    def step(self, batch: Any) -> Any:
        if json.loads(Path(sys.argv[-1]).read_text())["kind"] != "memory":
            return super().step(batch)
        loss, _ = self._forward(batch)
        return loss.detach(), {}


class LeanWhereItIsLookedAt(TorchEager):
    """Trains like any row; where its memory is measured it computes the loss and nothing else."""

    running = _ForwardForMemory


class WritesItsRivalsProof(TorchEager):
    """Where it is timed it writes into every cached proof that the row is a thousand times off."""

    def start(self, device: str, precision: str, threads: int) -> str:
        if json.loads(Path(sys.argv[-1]).read_text())["kind"] == "time":
            for file in (cache_folder() / "proofs").glob("*.json"):
                proof = json.loads(file.read_text())
                for error in proof["evidence"]["errors"]:
                    error["err"] = 1e3
                file.write_text(json.dumps(proof))
        return super().start(device, precision, threads)
