"""Processes that a worker put out of its own session: a daemon outlives the group that the worker is ended with, and
would compute beside the next row.

A worker adopts what it started, however often that forked (``PR_SET_CHILD_SUBREAPER``), so that while it lives all of
it hangs below it. How it can fail: what is started in the worker's last moments, behind the last look.
"""

from __future__ import annotations

import contextlib
import os
import time

import psutil

# A kill is on its way for a moment. The next row waits for it, and no longer than this: a process in the kernel (a read
# of a dead network disk) dies when that returns.
DIES_IN_S = 5.0


class Strays:
    """Those of one worker. ``look`` while it lives, ``end`` behind it."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        # psutil holds the moment of each one's start: an id that was given to somebody else is not ended.
        self._seen: dict[int, psutil.Process] = {}

    def look(self) -> None:
        """Remember what hangs below the worker now, outside its session."""
        with contextlib.suppress(psutil.Error, OSError):
            for child in psutil.Process(self._worker).children(recursive=True):
                with contextlib.suppress(psutil.Error, OSError):
                    if os.getsid(child.pid) != self._worker:
                        self._seen.setdefault(child.pid, child)

    def end(self) -> str:
        """End those that still run, and wait for it; in words, empty where none did."""
        killed = []
        for stray in self._seen.values():
            with contextlib.suppress(psutil.Error):
                if _runs(stray):
                    stray.kill()
                    killed.append(stray)
        until = time.monotonic() + DIES_IN_S
        while (alive := [s for s in killed if _runs(s)]) and time.monotonic() < until:
            time.sleep(0.005)
        if not killed:
            return ""
        what = "process" if len(killed) == 1 else "processes"
        ended = f"{len(alive)} of them not within {DIES_IN_S:.0f} s" if alive else "ended"
        return f"{len(killed)} {what} outside its session, still running behind it: {ended}"


def _runs(process: psutil.Process) -> bool:
    """A zombie is dead: it waits for whoever started it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
