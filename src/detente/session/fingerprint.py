"""The fingerprint: what must stay the same for two processes to be compared."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil

from detente.records.session import Fingerprint


def take_fingerprint(settings: dict[str, Any]) -> Fingerprint:
    """The machine as it is now, these settings, and the source that runs."""
    return Fingerprint(machine(), settings, source_hash())


def machine() -> dict[str, Any]:
    """Processor, cores, memory, kernel, devices. Nothing here changes while a session runs on a healthy machine."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*:\s*(.+)", info)
    return {
        "processor": model.group(1).strip() if model else platform.processor(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "devices": _devices(),
    }


@functools.cache
def _devices() -> list[str]:
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in told.stdout.splitlines() if line.strip()]


@functools.cache
def source_hash() -> str:
    """SHA-256 over detente's own source: a changed harness is another session. Only what a worker can run counts, so
    that a new report page does not forbid resuming."""
    root = Path(__file__).resolve().parent.parent
    return hash_files(
        p
        for room in ("worker", "stacks", "workloads", "bridge", "records", "programs")
        for p in (root / room).rglob("*.py")
    )


def hash_files(paths: Any) -> str:
    """One digest over names and contents, in name order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


# How long a session may take is no part of what it measures: `--resume` goes on with another budget. The number of
# blocks is a part, because the correction counts how often the words are looked at, and that is settled beforehand.
HOW_LONG = frozenset({"budget_s", "memory", "smallest_memory"})


def differences(a: Fingerprint, b: Fingerprint) -> list[str]:
    """What changed from ``a`` to ``b``, a line each; empty when nothing did."""
    found = []
    for part in ("machine", "settings"):
        old, new = getattr(a, part), getattr(b, part)
        found += [
            f"{part} {key}: {old.get(key)!r} -> {new.get(key)!r}"
            for key in sorted((old.keys() | new.keys()) - HOW_LONG)
            if old.get(key) != new.get(key)
        ]
    if a.source != b.source:
        found.append("detente's own source changed")
    return found
