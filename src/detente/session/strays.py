"""Processes that a worker put out of its own session: a daemon outlives the group that the worker is ended with, and
would compute beside the next row.

A worker adopts what it started, however often that forked (``PR_SET_CHILD_SUBREAPER``), so that while it lives all of
it hangs below it. How it can fail: what is started in the worker's last moments, behind the last look.
"""

from __future__ import annotations

import contextlib
import os

import psutil


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
        """End those that still run; in words, empty where none did."""
        ended = 0
        for stray in self._seen.values():
            with contextlib.suppress(psutil.Error):
                if stray.is_running() and stray.status() != psutil.STATUS_ZOMBIE:
                    stray.kill()
                    ended += 1
        what = "process" if ended == 1 else "processes"
        return f"{ended} {what} outside its session, still running behind it: ended" if ended else ""
