"""The memory of a compiled program, known before it runs, and how much there is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import jax
import psutil

# cgroup v2, then v1: a container's limit is below the machine's memory
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, as XLA planned them. Donated arguments are counted once: ``alias`` is the part of
    ``output`` that lives in arguments."""

    argument: int
    output: int
    temp: int
    alias: int
    code: int

    @property
    def peak(self) -> int:
        """Everything alive at the worst moment: arguments, fresh outputs and the plan's scratch space."""
        return self.argument + self.output - self.alias + self.temp

    @property
    def growth(self) -> int:
        """What a step adds to a process that already holds the arguments."""
        return self.peak - self.argument


# Asked once: XLA writes its whole assignment of buffers down for an answer, a fifth of a second for BERT's step.
_ASKED: WeakKeyDictionary[Any, Memory | None] = WeakKeyDictionary()


def memory(executable: Any) -> Memory | None:
    """What ``jax.stages.Compiled`` says, or None where the backend says nothing."""
    if executable not in _ASKED:
        _ASKED[executable] = _asked(executable)
    return _ASKED[executable]


def _asked(executable: Any) -> Memory | None:
    stats = executable.memory_analysis()
    if stats is None:
        return None
    return Memory(
        argument=stats.argument_size_in_bytes,
        output=stats.output_size_in_bytes,
        temp=stats.temp_size_in_bytes,
        alias=stats.alias_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
    )


def limit_bytes(device: Any = None) -> int | None:
    """The memory that programs on ``device`` (default: JAX's first) may use: the allocator's limit on an
    accelerator, the machine's or the container's memory on a CPU; None where nothing is known."""
    device = device or jax.devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats.get("bytes_limit")
    total = psutil.virtual_memory().total
    for path in _CGROUPS:
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def available_bytes() -> int:
    """What this process may still take of the machine's memory, or of its container's."""
    machine = psutil.virtual_memory()
    limit = limit_bytes(jax.devices("cpu")[0]) or machine.total
    return min(machine.available, max(limit - psutil.Process().memory_info().rss, 0))
