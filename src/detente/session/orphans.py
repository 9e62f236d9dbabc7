"""Processes that outlive the worker which started them. Whatever forked how often, the kernel gives them to the nearest
living ancestor that adopts (``PR_SET_CHILD_SUBREAPER``): to the worker while it lives (session/strays.py looks there),
and behind its end to this process.

They are ended before the next row begins, what is started in a worker's last moments among them, and waited for: the
kernel then books their time to us, and not to others who use the machine, beside whom rules give a row more room.

Only in a process that is a command of ours (``adopt``). In a program of the user's, which calls ``detente.compare``,
their children are their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterator

import psutil

from detente.session.strays import DIES_IN_S

_PR_SET_CHILD_SUBREAPER = 36
_LOCK = threading.Lock()


class _Here:
    adopts = False
    workers = 0


def adopt() -> None:
    """Orphans of workers become this process's children from now on; not where the kernel has no such thing."""
    with contextlib.suppress(OSError, AttributeError):
        _Here.adopts = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


@contextlib.contextmanager
def worker() -> Iterator[None]:
    """One is started in this, and has ended when it is left."""
    with _LOCK:
        _Here.workers += 1
    try:
        yield
    finally:
        with _LOCK:
            _Here.workers -= 1


def end(session: int = 0) -> str:
    """The caller's worker has ended. Ends what is left and waits for it, where no other worker runs; in words, empty
    where nothing ran but what was of the worker's own ``session``, which has been killed as a whole."""
    with _LOCK:
        return _end_all(session) if _Here.adopts and _Here.workers == 1 else ""


def _end_all(session: int) -> str:
    killed: set[int] = set()
    until = time.monotonic() + DIES_IN_S
    # What is killed may have started another meanwhile, which then is here too.
    while (left := _orphans()) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE and os.getsid(process.pid) != session:
                    process.kill()
                    killed.add(process.pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        time.sleep(0.002)
    if not killed:
        return ""
    what = "process" if len(killed) == 1 else "processes"
    return f"{len(killed)} {what} behind its end: {'not all ' if left else ''}ended"


def _orphans() -> list[psutil.Process]:
    """This process's children that are of another session: those that it starts itself without one of their own (git, a
    driver's query) share its session, and no worker runs."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(child.pid) != os.getsid(0):
                found.append(child)
    return found
