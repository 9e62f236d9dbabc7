"""From torch's stack traces to the user's file and line."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import torch

from detente.bridge.graph import Where

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>[^\n]+)(?:\n(?P<code>[^\n]*))?')
# torch, and the bridge, whose room this is
_SKIP = tuple(f"{folder}/" for folder in (Path(torch.__file__ or "").parent, Path(__file__).parents[1]))
# Python itself (contextlib and such stand between two frames of torch), and the algebra of torch's symbolic sizes
_STANDARD = sysconfig.get_paths()["stdlib"] + "/"
_INSTALLED = ("/site-packages/", "/dist-packages/")
# what a user types at a prompt; other names in angle brackets are generated code
_TYPED = ("<stdin", "<console", "<python-input", "<ipython-input")
_ALGEBRA = ("/site-packages/sympy/", "/dist-packages/sympy/")


def foreign(file: str) -> bool:
    """True for code that is the user's (or a library's), not torch's, ours or generated."""
    if file.startswith(_TYPED):
        return True
    if file.startswith((*_SKIP, "<")) or any(part in file for part in _ALGEBRA):
        return False
    return not file.startswith(_STANDARD) or any(part in file for part in _INSTALLED)


def where(stack_trace: str | None) -> Where:
    """The innermost frame of a node's ``stack_trace`` that is the user's."""
    found = Where()
    for match in _FRAME.finditer(stack_trace or ""):
        if foreign(match["file"]):
            found = Where(match["file"], int(match["line"]), (match["code"] or "").strip())
    return found


def raised_at(error: BaseException) -> Where:
    """The innermost user's frame that an exception passed through; frames before the capture itself do not
    count."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [i for i, f in enumerate(frames) if f.filename.startswith(_SKIP[1])]
    start = inside[0] if inside else 0
    for frame in reversed(frames[start:]):
        if foreign(frame.filename):
            return Where(frame.filename, frame.lineno or 0, (frame.line or "").strip())
    return Where()


def here() -> Where:
    """The innermost line of the running call that is the user's."""
    frame: Any = sys._getframe(1)
    while frame is not None and not foreign(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return Where()
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Where(file, line, linecache.getline(file, line).strip())


def passed(error: BaseException, part: str) -> bool:
    """Whether an exception passed through a file of torch whose path has ``part``."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(f.filename.startswith(_SKIP[0]) and part in f.filename for f in frames)


def code_place(function: object) -> Where:
    """Where a Python function is written."""
    code = getattr(function, "__code__", None)
    return Where(code.co_filename, code.co_firstlineno) if code else Where()
