"""The user's own files in a session: stacks and models of theirs, with what these import. A row of two programs is
none, so that none of them may change while a session lasts, or between its parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from detente.records.cell import Cell
from detente.records.fault import UsageFault
from detente.session.fingerprint import edited, file_digest
from detente.session.prepared import data_of, own_files
from detente.session.sources import sources_of

# Ours are in the fingerprint as ``source``, as far as a worker runs them.
_OURS = Path(__file__).resolve().parents[1]


def digests(cells: Iterable[Cell]) -> dict[str, str]:
    """Name of a file -> digest of its content, of all that the cells are named by, in the order of names. Without
    folders: a session is shown to other people. Files of one name are told as one."""
    asked = tuple(cells)
    workloads = {c.workload for c in asked}
    stacks = {Path(c.stack.rpartition(":")[0]) for c in asked if ".py:" in c.stack}
    named = [file for file in stacks if file.is_file()]
    named += [file for workload in workloads for file in own_files(workload)]
    files = (
        {file for file in sources_of(files=named).files if not file.is_relative_to(_OURS)} if named else set()
    )
    files |= {file for workload in workloads for file in data_of(workload)}
    found: dict[str, list[str]] = {}
    for file in sorted(files):
        found.setdefault(file.name, []).append(file_digest(file))
    return {name: _one(of) for name, of in sorted(found.items())}


def _one(of: list[str]) -> str:
    return (of[0] if len(of) == 1 else hashlib.sha256("".join(of).encode()).hexdigest())[:16]


class Unedited:
    """Asks before and behind every process of a session whether the files are those that it began with."""

    def __init__(self, cells: Iterable[Cell], before: Mapping[str, str], session: str) -> None:
        self._cells, self._before, self._session = tuple(cells), dict(before), session

    def check(self) -> None:
        """Raises UsageFault where a file was edited."""
        if not self._before:
            return
        if said := edited(self._before, digests(self._cells)):
            raise UsageFault(
                f"session {self._session} ends here: {', '.join(said)} while it ran, and a row of two programs is none",
                "everything that finished is kept: put the files back and `detente compare --resume` continues; or "
                "leave --resume out to measure what they are now",
            )
