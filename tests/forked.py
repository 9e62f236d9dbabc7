"""Work in its own process, forked from one that has imported everything and computed nothing.

A fork is safe only while there is one thread and no XLA backend, so the parent never runs JAX. A child that takes too
long or dies is told as a record of its own, not as the end of the run. The coverage page and the third-party models
are made so.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

BYTES = 12 * 2**30
Record = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    seconds: int = 300  # of processor time: the machine may be busy
    waiting: float = 1800.0  # of the clock, for a child that waits for ever


@dataclass
class _Child:
    index: int
    pid: int
    told: int
    end: float
    text: bytes = b""


def each(
    works: Sequence[Callable[[], Record]], jobs: int = 1, limits: Limits | None = None, quiet: bool = True
) -> Iterator[tuple[int, Record]]:
    """(number of the work, its record) as they end, ``jobs`` at a time."""
    limits = limits or Limits()
    waiting = list(enumerate(works))[::-1]
    running: dict[int, _Child] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            index, work = waiting.pop()
            child = _start(index, work, limits, quiet, tuple(running))
            running[child.told] = child
        left = max(min(c.end for c in running.values()) - monotonic(), 0.0)
        ready, _, _ = select.select(list(running), [], [], left)
        for told in ready:
            part = os.read(told, 65536)
            running[told].text += part
            if not part:
                child = running.pop(told)
                yield child.index, _ended(child, limits, late=False)
        for child in [c for c in running.values() if c.end <= monotonic()]:
            del running[child.told]
            os.killpg(child.pid, signal.SIGKILL)
            yield child.index, _ended(child, limits, late=True)


def _start(
    index: int, work: Callable[[], Record], limits: Limits, quiet: bool, others: tuple[int, ...]
) -> _Child:
    told, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        for open_pipe in (told, *others):
            os.close(open_pipe)
        _work(work, say, limits, quiet)
    os.close(say)
    return _Child(index, pid, told, monotonic() + limits.waiting)


def _ended(child: _Child, limits: Limits, late: bool) -> Record:
    os.close(child.told)
    _, status = os.waitpid(child.pid, 0)
    if child.text and not late:
        return json.loads(child.text)
    reason = f"the process died with status {status}"
    if late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        reason = f"stuck for {limits.waiting if late else limits.seconds:.0f} s"
    return {"outcome": "crashed", "detail": reason}


def _work(work: Callable[[], Record], say: int, limits: Limits, quiet: bool) -> None:
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds + 10))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    if quiet:
        os.dup2(null, 2)
    try:
        record = work()
    except BaseException:
        record = {"outcome": "crashed", "detail": "in the harness: " + traceback.format_exc()[-1500:]}
    try:
        with os.fdopen(say, "w") as out:
            json.dump(record, out)
        sys.stdout.flush()
    finally:  # also where the parent is gone and nobody reads: a child never goes on with the parent's work
        os._exit(0)
