"""How much data memory a worker may take: a little less than the machine can give, so that what does not fit is an
error in the worker, with its phase and its bytes, and never the kernel's choice of whom to kill.

RLIMIT_DATA counts what a process may write and shares with nobody. On a CPU that is within a tenth of what it has
resident. A driver of an accelerator maps far more than it touches, so that nothing is capped where there is one.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from detente.session.memory_watch import available

_KEEPS = 0.95
_DRIVERS = ("nvidia0", "nvidiactl", "kfd", "accel0", "vfio")
# A machine that has less than this left runs nothing anyway; the cap would then be the reason of every row.
LEAST = 2**30


def of_machine(device: str, files: Path = Path("/dev")) -> int | None:
    """The cap in bytes; None where none is set."""
    if device not in ("auto", "cpu") or (device == "auto" and any((files / n).exists() for n in _DRIVERS)):
        return None
    free = min(psutil.virtual_memory().available, available())
    return int(_KEEPS * free) if free > LEAST else None
