"""A visit: one `detente compare` for a room, and what is wrong with what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.museum.rooms import Room

ROOT = Path(__file__).resolve().parents[2]
Cells = Mapping[str, Mapping[str, Any]]


def arguments(room: Room, planted: tuple[str, ...], fair: tuple[str, ...]) -> list[str]:
    """The command line of a visit. One thread each: a barrier between threads on a core that somebody else uses waits
    for the scheduler, and a step of a millisecond takes a hundred."""
    stacks = [*fair, *(room.planted[name].where + name for name in planted)]
    return [
        *(
            "compare",
            room.workload,
            *(("--size", room.size) if room.size else ()),
            "--contract",
            room.contract,
            "--precision",
            room.precision,
        ),
        *("--stacks", ",".join(stacks), "--blocks", str(room.blocks), "--threads", str(threads(room))),
        *("--no-aa", "--no-memory", "--format", "json"),
    ]


def threads(room: Room) -> int:
    """Two where an exhibit uses fewer than it was asked for."""
    fewer = any(p.rule == "threads-differ" for p in room.planted.values())
    return min(2, len(os.sched_getaffinity(0))) if fewer else 1


def visit(room: Room, planted: tuple[str, ...], fair: tuple[str, ...], timeout: float = 3600) -> Cells:
    """The cells of one session by label. Raises RuntimeError with what the command said where it gave none."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    done = subprocess.run(
        [sys.executable, "-m", "detente", *arguments(room, planted, fair)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        env={**os.environ, "DETENTE_REPLAY": "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
        check=False,
    )
    try:
        return {cell["label"]: cell for cell in json.loads(done.stdout)["cells"]}
    except (ValueError, KeyError):
        raise RuntimeError(f"no cells (exit {done.returncode}): {done.stderr[-2000:]}") from None


def label(stack: str) -> str:
    """What the session calls a stack: a user's own by its class."""
    return stack.rpartition(":")[2]


def findings(cell: Mapping[str, Any]) -> dict[str, str]:
    """Severity by rule. A busy machine is a fact about the machine, not about the row."""
    return {
        f["rule"]: f["severity"]
        for f in cell["findings"]
        if f["severity"] != "unchecked" and f["rule"] != "machine-shared"
    }


def wrong_with_planted(room: Room, name: str, cell: Mapping[str, Any]) -> str:
    """Why an exhibit counts as not caught; empty when it was, by its own rule, at its own severity, and by no rule
    besides that the fault does not break."""
    planted, found = room.planted[name], findings(cell)
    if planted.rule == "survivors-only" and cell["status"] == "failed":
        return ""  # the row that died stays in the table with its reason, and no ratio with it is printed
    voids = {r for r, s in found.items() if s == "void"}
    said = f"{cell['status']} ({cell['reason']}); {found}"
    if found.get(planted.rule) != planted.severity:
        return f"{planted.rule} did not say {planted.severity}: {said}"
    if voids - {planted.rule, *planted.also}:
        return f"also {', '.join(sorted(voids - {planted.rule, *planted.also}))}: {said}"
    if planted.severity == "void" and cell["status"] != "void":
        return f"it is not void: {said}"
    return ""


def wrong_with_fair(cell: Mapping[str, Any]) -> str:
    """Why a fair row counts as blamed; empty when it ran and no rule voids it."""
    if cell["status"] != "ok" or "void" in findings(cell).values():
        return f"{cell['status']} ({cell['reason']}); {findings(cell)}"
    return ""
