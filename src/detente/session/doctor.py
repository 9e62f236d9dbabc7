"""The checks of ``detente doctor``: the machine first, then every stack in a worker of its own."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from detente.judge.headline import LEAST_RATIO
from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.folders import data_folder
from detente.session.alone import run_alone
from detente.session.fingerprint import machine
from detente.session.interrupts import Interrupts
from detente.session.layout import missing_reason
from detente.session.quiet import look
from detente.stacks.catalogue import STACKS, StackEntry

PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Check:
    """``state``: ``ok``, ``warn`` (measurable, but), ``bad``, ``absent`` (not installed). ``fix`` is what to do."""

    name: str
    state: str
    what: str
    fix: str = ""


def examine(device: str) -> Iterator[Check]:
    """Every check as soon as it is known."""
    facts = machine()
    yield Check(
        "machine",
        "ok",
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, "
        f"{facts['system']}" + (f", {', '.join(facts['devices'])}" if facts["devices"] else ""),
    )
    yield _noise()
    yield _load()
    yield _frequency()
    yield _store()
    yield _compiler()
    with Interrupts() as interrupts:
        for entry in STACKS.values():
            if interrupts.count:
                return
            yield _stack(entry, device, interrupts)


def _noise() -> Check:
    """Spread of a fixed piece of arithmetic: what the machine alone does to a clock."""
    import numpy as np

    x = np.ones((512, 512), np.float32)
    np.matmul(x, x)
    times = []
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        start = time.perf_counter()
        for _ in range(8):
            np.matmul(x, x)
        times.append(time.perf_counter() - start)
    middle = sorted(times)[len(times) // 2]
    spread = (sorted(times)[int(len(times) * 0.9)] - middle) / middle
    state = "ok" if spread < 0.05 else "warn"
    return Check(
        "noise",
        state,
        f"nine in ten repeats of a fixed product are within {100 * spread:.1f} % of the median",
        "" if state == "ok" else "close other programs; expect wider intervals and more blocks",
    )


def _load() -> Check:
    """The same look that a session takes before each block."""
    seen = look(1.0)
    who = f": {seen.told()}" if seen.neighbours else ""
    return Check(
        "other processes",
        "ok" if seen.quiet else "warn",
        f"they use {100 * seen.share:.0f} % of the machine{who}",
        ""
        if seen.quiet
        else "stop them: a neighbour slows torch's static thread split more than XLA. A session waits for a quiet "
        f"machine, and beside others it says neither SAME nor leads with less than {LEAST_RATIO:g}x",
    )


def _frequency() -> Check:
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if not governor.exists():
        return Check("clock speed", "ok", "the system tells no governor (a virtual machine)")
    name = governor.read_text().strip()
    return Check(
        "clock speed",
        "ok" if name == "performance" else "warn",
        f"governor {name}",
        "" if name == "performance" else "cpupower frequency-set -g performance",
    )


def _store() -> Check:
    folder = data_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Check(
            "store", "bad", f"{folder}: {error.strerror}", "set DETENTE_HOME to a folder that you may write"
        )
    free = shutil.disk_usage(folder).free / 2**30
    return Check(
        "store",
        "ok" if free > 5 else "warn",
        f"{folder}, {free:.0f} GiB free",
        "" if free > 5 else "prepared weights and compile caches take up to 5 GiB",
    )


def _compiler() -> Check:
    compiler = os.environ.get("CXX", "g++")
    found = shutil.which(compiler) or shutil.which("clang++")
    headers = (Path(sysconfig.get_path("include")) / "Python.h").exists()
    if found and headers:
        return Check("C++ compiler", "ok", f"{found}, with Python's headers")
    lacking = [] if found else [f"no {compiler}"]
    lacking += [] if headers else ["no Python.h"]
    return Check(
        "C++ compiler",
        "warn",
        ", ".join(lacking) + ": torch-compile is skipped on the CPU",
        "Debian: apt install g++ python3-dev",
    )


def _stack(entry: StackEntry, device: str, interrupts: Interrupts) -> Check:
    name = f"stack {entry.name}"
    why = missing_reason(entry)
    if why:
        reason, _, fix = why.partition(": ")
        return Check(name, "absent", reason, fix)
    cell = Cell("gemm", "tiny", entry.name, CONTRACTS["forward"], device, entry.name)
    e = run_alone("probe", cell, interrupts, limits={"*": PROBE_LIMIT_S}).evidence
    if e.status != "ok":
        return Check(name, "absent" if e.status == "skipped" else "bad", e.reason, "")
    found = e.probes["precision"]["class"]
    versions = " ".join(f"{k} {v}" for k, v in list(e.versions.items())[:2])
    state = "ok" if found == "fp32" else "warn"
    return Check(
        name,
        state,
        f"{versions} on {e.probes['platform']}, imported in {e.import_s:.1f} s, a synchronised "
        f"product took {1e3 * e.probes['product_s']:.2f} ms at {found}",
        "" if state == "ok" else "fp32 was asked for: look at the framework's matmul precision settings",
    )
