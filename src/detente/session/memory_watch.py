"""Whether a worker that was killed was killed for want of memory: the kernel does not tell its parent."""

from __future__ import annotations

from pathlib import Path

import psutil

# A worker that held this share of all memory when SIGKILL came was, as good as certainly, the kernel's choice.
_SHARE = 0.7
_COUNTERS = (
    (Path("/sys/fs/cgroup/memory.events"), "oom_kill"),  # this container's, version 2
    (Path("/sys/fs/cgroup/memory/memory.oom_control"), "oom_kill"),  # version 1
    (Path("/proc/vmstat"), "oom_kill"),  # the whole machine's
)
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class MemoryWatch:
    """Remembers the kernel's counters of processes killed for memory; made before a worker starts."""

    def __init__(self) -> None:
        self._before = _kills()

    def killed(self, peak: int) -> str:
        """What speaks for memory, in words; nothing when nothing does. ``peak``: the most bytes that the worker had
        resident. Ask it once the worker has ended."""
        more = any(now > then for now, then in zip(_kills(), self._before, strict=True))
        if more:
            return f"the kernel killed a process for memory; this one had {peak / 2**30:.1f} GiB"
        limit = available()
        if peak > _SHARE * limit:
            return f"it had {peak / 2**30:.1f} GiB of {limit / 2**30:.1f} when it was killed"
        return ""


def available() -> int:
    """Bytes of memory that this machine, or this container, has."""
    found = [psutil.virtual_memory().total]
    for path in _LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    return min(found)


def _kills() -> list[int]:
    return [_counter(path, name) for path, name in _COUNTERS]


def _counter(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(x.split()[1]) for x in lines if x.split()[:1] == [name]), 0)
