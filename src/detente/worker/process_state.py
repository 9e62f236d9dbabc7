"""The process as the kernel sees it: where its threads may run, how nicely, and what they have used.

Taken before the user's code is loaded and around the window. It reads /proc and not the framework, because a thread
count that a stack reports is a thread count that a stack reports.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter  # bound here: this module is imported before any user's file

# The interpreter's timers as they were then.
_TIMERS = {
    name: getattr(time, name)
    for name in (
        "perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "monotonic", "monotonic_ns", "time"
    )
}  # fmt: skip

_TICK = os.sysconf("SC_CLK_TCK")
# Of the busiest thread's time: whoever uses less does none of the step's work that a core could be short of.
COMPUTES = 0.1


@dataclass(frozen=True)
class ProcessState:
    """``affinity``, ``niceness`` and ``policies`` hold every value that some thread has, sorted, without repeats;
    ``affinity`` also those of processes that this one started: beside a neighbour a helper on another core may get no
    more time than the row gives up, and still it was put there. ``processor_s`` is the time on a processor of this
    process and of everything that it started, ``started_s`` that of what it started alone; ``threads`` has the cores
    and the seconds of each thread of them."""

    at: float
    affinity: tuple[tuple[int, ...], ...]
    niceness: tuple[int, ...]
    policies: tuple[int, ...]
    processor_s: float
    threads: Mapping[int, tuple[tuple[int, ...], float]]
    started_s: float = 0.0


def take_state() -> ProcessState:
    """The state now."""
    threads: dict[int, tuple[tuple[int, ...], float]] = {}
    niceness, policies = set(), set()
    for thread in _threads("self"):
        # A thread may end between the listing and the question.
        with contextlib.suppress(OSError):
            threads[thread] = _cores(thread), _thread_seconds("self", thread)
            niceness.add(os.getpriority(os.PRIO_PROCESS, thread))
            policies.add(os.sched_getscheduler(thread))
    children = _descendants()
    for child, thread in [(pid, thread) for pid in children for thread in _threads(pid)]:
        with contextlib.suppress(OSError):
            threads[thread] = _cores(thread), _thread_seconds(child, thread)
    own, started = _processor_seconds(children)
    return ProcessState(
        perf_counter(),
        tuple(sorted({cores for cores, _ in threads.values()})),
        tuple(sorted(niceness)),
        tuple(sorted(policies)),
        own + started,
        threads,
        started,
    )


def computing(before: ProcessState, after: ProcessState) -> list[tuple[int, ...]]:
    """The cores of every thread that computed between two states, one entry each: of those that used a tenth of what
    the busiest did. One that sleeps (a loader's, a pool's between two operators) says nothing of where work is done."""
    used = {
        thread: seconds - before.threads.get(thread, ((), 0.0))[1]
        for thread, (_, seconds) in after.threads.items()
    }
    most = max(used.values(), default=0.0)
    return sorted(after.threads[thread][0] for thread, s in used.items() if s > 0 and s >= COMPUTES * most)


def _cores(thread: int) -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(thread)))


def patched_timers() -> list[str]:
    """Names of the timers of ``time`` that are not what they were before the stack's file was loaded."""
    return [name for name, timer in _TIMERS.items() if getattr(time, name, None) is not timer]


def _threads(pid: int | str) -> list[int]:
    """The threads of a process; none of one that has ended."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def _thread_seconds(pid: int | str, thread: int) -> float:
    """Seconds on a processor: in nanoseconds where the kernel counts them, else in ticks."""
    folder = f"/proc/{pid}/task/{thread}"
    with (
        contextlib.suppress(OSError, IndexError, ValueError),
        open(f"{folder}/schedstat", encoding="utf-8") as file,
    ):
        return int(file.read().split()[0]) / 1e9
    with contextlib.suppress(OSError, IndexError, ValueError):
        return sum(map(int, _fields(f"{folder}/stat")[11:13])) / _TICK
    return 0.0


def _processor_seconds(children: list[int]) -> tuple[float, float]:
    """Seconds of this process, and of all that it started: those that it has waited for, and those that still run."""
    times = os.times()
    waited = times.children_user + times.children_system
    return times.user + times.system, waited + sum(_ticks_of(child) for child in children) / _TICK


def _ticks_of(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = _fields(f"/proc/{pid}/stat")
        # utime, stime, cutime, cstime: fields 14 to 17 of proc(5), counted from the state on, which is field 3.
        return sum(int(field) for field in fields[11:15])
    return 0


def _descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents.setdefault(int(_fields(f"/proc/{name}/stat")[1]), []).append(int(name))
    found, wanted = [], [os.getpid()]
    while wanted:
        children = parents.get(wanted.pop(), [])
        found += children
        wanted += children
    return found


def _fields(path: str) -> list[str]:
    # The name of a process is in brackets and may hold spaces and brackets itself.
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
