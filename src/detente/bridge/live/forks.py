"""Processes that are forked from one in which steps train: a loader's workers, a copy that writes a checkpoint.

A fork copies the memory and one thread. JAX's threads are not among them, and what is asked of JAX in such a child
waits for ever: nothing of a step runs there. A data set that reads a buffer (its own mean) is read in the child,
though, and in eager it finds the values of the fork. So the live module and optimizer are filled before a fork, where
they are behind: a copy of weights and moments, and the certificate that the next step would make. A loader forks its
workers once an epoch, and behind the first of them nothing is behind. The lock of all steps is held across the fork, so
that no other thread's half-written values are what the child gets. In the child guards see nothing, and a call of a
step is refused.

How it can fail: a fork in C, of which Python is not told; one in the middle of a call of a step (the loss forks, or
another thread captures for half a minute), or of a step whose certificate fails: the child has older values then, and
is told so.
"""

from __future__ import annotations

import os
import threading
import weakref
from functools import cache, partial
from typing import Any, Protocol

from detente.bridge.refusal import refuse

# Whoever is inside of a step for longer (a capture of a large model) is not waited for: it may wait for something that
# the thread which forks has taken before.
SECONDS = 30.0


class Lock(Protocol):
    def acquire(self, *, timeout: float) -> bool: ...
    def release(self) -> None: ...


class _Child:
    """Whether this process is one, of a process that had a step."""

    now = False


_forking = threading.local()  # of the thread that does: ``locked``, whether it has the lock


_asked: weakref.WeakSet[Any] = weakref.WeakSet()


def in_child() -> bool:
    """Whether this process was forked from one in which a step was compiled: JAX's threads are not here."""
    return _Child.now


def not_in_child() -> None:
    """Raises Refused in such a process."""
    if _Child.now:
        raise refuse(
            "fork",
            f"process {os.getpid()} was forked from one in which JAX runs, whose threads are not in it: nothing that "
            "is compiled can run here",
        )


def attend(step: Any, lock: Lock) -> None:
    """``step._before_fork()`` is called before every fork from now on, with the ``lock`` of all steps held."""
    _listen(lock)
    _asked.add(step)


@cache
def _listen(lock: Lock) -> None:
    if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
        os.register_at_fork(
            before=partial(_before, lock),
            after_in_parent=partial(_release, lock),
            after_in_child=partial(_begin, lock),
        )


def _before(lock: Lock) -> None:
    _forking.locked = lock.acquire(timeout=SECONDS)
    if _forking.locked and not _Child.now:
        for step in list(_asked):
            step._before_fork()


def _release(lock: Lock) -> None:
    if _forking.locked:
        lock.release()


def _begin(lock: Lock) -> None:
    _Child.now = True
    _release(lock)
