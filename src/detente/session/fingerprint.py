"""The fingerprint: what must stay the same for two processes to be compared."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
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
    return {
        "processor": processor_of(info) or platform.processor(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "devices": _devices(),
    }


def processor_of(info: str) -> str:
    """The first processor of ``/proc/cpuinfo``, by its name and its numbers; empty where neither is told. A virtual
    machine has one name for several generations: of two that are called ``AMD EPYC``, of families 25 and 26, one
    takes twice the time of the other for a step of GPT-2 in PyTorch.

    >>> processor_of("model name : AMD EPYC\\ncpu family : 25\\nmodel : 1\\n")
    'AMD EPYC (family 25, model 1)'
    >>> processor_of("CPU implementer : 0x41\\nCPU part : 0xd40\\n")
    'implementer 0x41, part 0xd40'
    """
    told: dict[str, str] = {}
    for key, colon, value in (line.partition(":") for line in info.splitlines()):
        if colon and value.strip():
            told.setdefault(key.strip(), value.strip())
    numbers = ", ".join(f"{word} {told[key]}" for key, word in _NUMBERS.items() if key in told)
    name = told.get("model name", "")
    return f"{name} ({numbers})" if name and numbers else name or numbers


# What tells one generation from another: of x86, then of ARM.
_NUMBERS = {"cpu family": "family", "model": "model", "CPU implementer": "implementer", "CPU part": "part"}


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
        digest.update(f"{path.name}\0{file_digest(path)}\0".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content. One that is as it was is not read again: a checkpoint has gigabytes."""
    found = path.stat()
    return _digest(path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@functools.lru_cache(maxsize=4096)
def _digest(path: Path, *stamp: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# How long a session may take is no part of what it measures: `--resume` goes on with another budget. The number of
# blocks is a part, because the correction counts how often the words are looked at, and that is settled beforehand.
HOW_LONG = frozenset({"budget_s", "memory", "smallest_memory"})
# The setting that holds what the user's own files were (session/edited.py).
OWN_FILES = "own_files"


def differences(a: Fingerprint, b: Fingerprint) -> list[str]:
    """What changed from ``a`` to ``b``, a line each; empty when nothing did."""
    found = []
    for part in ("machine", "settings"):
        old, new = getattr(a, part), getattr(b, part)
        found += [
            f"{part} {key}: {old.get(key)!r} -> {new.get(key)!r}"
            for key in sorted((old.keys() | new.keys()) - HOW_LONG - {OWN_FILES})
            if old.get(key) != new.get(key)
        ]
    found += edited(*(x.settings.get(OWN_FILES, {}) for x in (a, b)))
    if a.source != b.source:
        found.append("detente's own source changed")
    return found


def edited(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Which of the user's own files differ, name -> digest then and now, a few words each."""
    names = (n for n in sorted(before.keys() | now.keys()) if before.get(n) != now.get(n))
    return [
        f"{n} was edited" if n in before and n in now else f"{n} {'came' if n in now else 'went'}"
        for n in names
    ]
