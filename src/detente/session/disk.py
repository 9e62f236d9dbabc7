"""Disks that are full or cannot be written while a session runs: the session stops, and what finished is kept."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from detente.records.evidence import Evidence
from detente.records.fault import MachineFault

# How the libraries that a worker writes with (Python, safetensors, the compilers) say it.
_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|File too large|os error (28|122|30|27)\b"
)
_KEPT = "everything that finished is kept, and `detente compare --resume` continues"


@contextlib.contextmanager
def writing(folder: Path, variable: str) -> Iterator[None]:
    """Writes to ``folder``; what fails is a MachineFault that names it and ``variable``, which moves it."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise MachineFault(
            f"cannot write to {folder}: {why}",
            f"free some space, or move it with {variable} or DETENTE_HOME; {_KEPT}",
        ) from error


def refuse_full_disk(evidence: Evidence, log: Path) -> None:
    """Raise MachineFault for a worker that failed because it could not write. The next would fail of the same, and a
    row that is called failed for it would be a verdict on the wrong thing."""
    if evidence.status == "failed" and _FULL.search(evidence.reason):
        raise MachineFault(
            f"a worker could not write in phase {evidence.phase!r}: {evidence.reason}",
            f"free some space, or move the caches with XDG_CACHE_HOME or DETENTE_HOME; {_KEPT} (its log is {log})",
        )
