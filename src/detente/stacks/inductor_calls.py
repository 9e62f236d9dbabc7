"""How long each kernel took that Inductor's code calls.

Inductor writes a Python function for each graph, which calls one kernel after the other: its own C++, or an operator of
torch's. On a CPU a kernel has run when its call returns. So Python's own profiler is asked, which calls back for every
call, and the calls are found by their lines: above each stands a comment with its kernel's name
(``[Provenance debug handles] extern_kernels.mm:3``). What lies between two kernels (buffers, checks) is nobody's.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

# So many steps: a single one is at the mercy of whoever shares the machine.
STEPS = 5
_COMMENT = re.compile(r"^\s*# \[Provenance debug handles\] (\S+)\s*$")


def seconds_of_calls(step: Callable[[], Any], texts: Sequence[str]) -> dict[int, dict[str, float]]:
    """Position of a code in ``texts`` -> kernel -> its seconds, the median over ``STEPS`` of ``step()``. Kernels that a
    step calls several times are summed. A code that did not run in every step is left out: it is of no step."""
    runs = [_profiled(step, texts) for _ in range(STEPS)]
    found: dict[int, dict[str, float]] = {}
    for at in range(len(texts)):
        mine = [run[at] for run in runs if at in run]
        if len(mine) == STEPS and all(set(run) == set(mine[0]) for run in mine):
            found[at] = {kernel: statistics.median(run[kernel] for run in mine) for kernel in mine[0]}
    return found


def kernel_lines(text: str) -> dict[int, str]:
    """Line -> the kernel that it calls: those of the statement under a kernel's comment.

    >>> kernel_lines("# [Provenance debug handles] extern_kernels.mm:3\\nmm(\\n  a,\\n)\\ndel a")
    {2: 'extern_kernels.mm:3', 3: 'extern_kernels.mm:3', 4: 'extern_kernels.mm:3'}
    """
    lines = text.splitlines()
    named = {at: m[1] for at, line in enumerate(lines, 1) if (m := _COMMENT.match(line))}
    if not named:
        return {}
    statements = sorted(
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
    )
    found: dict[int, str] = {}
    for comment, kernel in named.items():
        begin, end = next(((b, e) for b, e in statements if b > comment), (0, -1))
        found |= dict.fromkeys(range(begin, end + 1), kernel)
    return found


def _profiled(step: Callable[[], Any], texts: Sequence[str]) -> dict[int, dict[str, float]]:
    """One step under Python's profiler. Only calls out of Inductor's own code are looked at."""
    place = {text: at for at, text in enumerate(texts)}
    lines_of = [kernel_lines(text) for text in texts]
    seconds: dict[int, Counter[str]] = {}
    open_calls: list[tuple[int, float]] = []  # (line, begun) of calls that code is in

    @cache
    def code_of(file: str) -> int | None:
        """The text that a file holds, by its place."""
        if not file.endswith(".py"):
            return None
        try:
            return place.get(Path(file).read_text())
        except (OSError, UnicodeDecodeError):
            return None

    def look(frame: Any, event: str, _: Any) -> None:
        now = time.perf_counter()
        caller = frame.f_back if event in ("call", "return") else frame
        if caller is None or (at := code_of(caller.f_code.co_filename)) is None:
            return
        if event in ("call", "c_call"):
            open_calls.append((caller.f_lineno, time.perf_counter()))
        elif open_calls:
            line, begun = open_calls.pop()
            kernel = lines_of[at].get(line)
            if kernel is not None:
                spent: Counter[str] = seconds.setdefault(at, Counter())
                spent[kernel] += now - begun  # type: ignore[assignment]  # Counter of floats

    before: Mapping[str, Any] | Any = sys.getprofile()
    sys.setprofile(look)
    try:
        step()
    finally:
        sys.setprofile(before)
    return {at: dict(found) for at, found in seconds.items()}
