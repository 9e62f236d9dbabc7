"""What a user's code asks for outside of Python's values while a program is captured: files, folders, the network,
other processes. In eager it is asked anew in every step; a program keeps what was said when it was captured.

It is measured by looking, and not by names: Python tells of files, sockets and databases that are opened (its audit
events, also where C opens them for numpy), and the function that notes what runs is told of calls into C. Imports are
no such question, nor is what torch and JAX look up for themselves while they trace, nor a source file that a message
quotes.

How it can fail: C code of a package that opens files without Python (what safetensors is asked for is seen), lines of a
file that was opened before, ``os.environ`` (the walk watches that). A listener cannot be taken away: from the first
capture on Python calls one function for each of its audit events, a tenth of a microsecond, which does nothing between
captures.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import jax
import torch

from detente.bridge.live.python import in_library

# Audit events, and what is said of each; the first argument says what was asked for.
_EVENTS = {
    "open": "reads",
    "os.listdir": "lists",
    "os.scandir": "lists",
    "sqlite3.connect": "opens",
    "socket.connect": "connects to",
    "socket.getaddrinfo": "looks up",
    "subprocess.Popen": "runs",
    "os.system": "runs",
    "os.posix_spawn": "runs",
}
_POSIX = frozenset({"stat", "lstat", "access", "readlink", "getcwd", "getcwdb", "read", "pread"})
# Methods of objects that were opened earlier, by the module of their class. What lies in memory is no question.
_HELD = {
    "_io": frozenset({"read", "read1", "readall", "readinto", "readline", "readlines"}),
    "sqlite3": frozenset({"execute", "executemany", "fetchone", "fetchmany", "fetchall"}),
    "_socket": frozenset({"recv", "recv_into", "recvfrom"}),
    "mmap": frozenset({"read", "readline", "find"}),
    "builtins": frozenset(
        {"get_tensor", "get_tensors", "get_slice"}
    ),  # safetensors' safe_open says that it is one
}
_IN_MEMORY = frozenset({"BytesIO", "StringIO"})
_CALLS = _POSIX.union(*_HELD.values())
# Python's own that opens sources to import or to quote them, and what writes records.
_PYTHON = str(Path(os.__file__).parent) + os.sep
_NO_QUESTION = (
    "<frozen importlib",
    *(f"{_PYTHON}{folder}{os.sep}" for folder in ("importlib", "logging")),
    *(f"{_PYTHON}{name}.py" for name in ("linecache", "inspect", "tokenize", "traceback", "warnings")),
)
_TRACERS = tuple(str(Path(of.__file__ or "").parent) + os.sep for of in (torch, jax))
_OWN = str(Path(__file__).parents[1]) + os.sep
_READERS = tuple(
    os.path.join(str(Path(torch.__file__ or "").parent), *name)
    for name in (("serialization.py",), ("hub.py",), ("storage.py",), ("utils", "data"))
)


class Outside:
    """``asked`` is everything that was asked for, in words, and ``last`` what was since ``anew()``."""

    now: ClassVar[Outside | None] = None  # who listens

    def __init__(self) -> None:
        self.asked: dict[str, None] = {}
        self.last: dict[str, None] = {}
        self._thread = 0

    def anew(self) -> None:
        self.last = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While the user's code runs, in this thread."""
        _attend()
        before, self._thread, Outside.now = Outside.now, threading.get_ident(), self
        try:
            yield
        finally:
            Outside.now = before

    def called(self, frame: FrameType, function: Any) -> None:
        """A function in C is called, as the profiler says. Its arguments are not known: a path is looked for among the
        names of whoever calls it."""
        name = getattr(function, "__name__", "")
        if name not in _CALLS or Outside.now is not self:
            return
        module, owner = getattr(function, "__module__", None), getattr(function, "__self__", None)
        kind = type(owner)
        if module in ("posix", "nt") and name in _POSIX:
            self._heard(f"asks the file system ({name})", _path(frame) or "", frame)
        elif name in _HELD.get(kind.__module__, ()) and kind.__name__ not in _IN_MEMORY:
            self._heard("reads", getattr(owner, "name", _path(frame) or f"a {kind.__qualname__}"), frame)

    def _heard(self, does: str, what: Any, frame: FrameType | None) -> None:
        if threading.get_ident() != self._thread:
            return
        by = _users(frame)
        if by is not None:
            code = by.f_code
            what = os.fsdecode(what) if isinstance(what, bytes | os.PathLike) else what
            said = f"{code.co_qualname} ({code.co_filename}:{by.f_lineno}) {does} {what}".rstrip()
            self.asked[said] = self.last[said] = None


def _path(frame: FrameType) -> Any:
    return next((v for v in frame.f_locals.values() if isinstance(v, str | os.PathLike)), None)


@cache
def _attend() -> None:
    sys.addaudithook(_told)


def _told(event: str, args: tuple[Any, ...]) -> None:
    listener = Outside.now
    if listener is None or event not in _EVENTS or (event == "open" and not _to_read(*args)):
        return
    what = args[1] if event == "socket.connect" else args[0] if args else ""
    listener._heard(_EVENTS[event], what, sys._getframe(1))


def _to_read(path: Any, mode: Any = None, flags: Any = 0) -> bool:
    if isinstance(mode, str):
        return "r" in mode or "+" in mode
    return not isinstance(flags, int) or flags & os.O_ACCMODE != os.O_WRONLY


def _users(frame: FrameType | None) -> FrameType | None:
    """The user's function on whose behalf this frame asks; None where there is none, or where it is an import's, a
    message's, or torch's own question."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith((*_NO_QUESTION, _OWN)):
            return None
        if file.startswith(_TRACERS) and not file.startswith(_READERS):
            return None
        if not in_library(file):
            return frame
        frame = frame.f_back
    return None
