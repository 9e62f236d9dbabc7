"""What could not be prepared: a workload that does not build fails once, not once for every row and block."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from detente.records.cell import Cell
from detente.records.evidence import Evidence
from detente.records.fault import CellFault
from detente.records.session import Process
from detente.session.prepared import has_weights
from detente.worker.reference import reference_name


class Unmade:
    """The evidence of prepare jobs that failed, by what they were to make."""

    def __init__(self) -> None:
        self._why: dict[tuple[str, str], Evidence] = {}
        self._weightless: dict[str, Evidence] = {}  # by folder: what is built for every contract was not
        self._told: list[tuple[str, Path]] = []

    def __bool__(self) -> bool:
        return bool(self._why)

    def knows(self, cell: Cell, folder: Path) -> bool:
        """Whether what ``cell`` loads was tried already."""
        return self._evidence(cell, folder) is not None

    def add(self, cell: Cell, folder: Path, evidence: Evidence, log: Path) -> None:
        """What ``cell`` loads could not be made."""
        self._why[_key(cell, folder)] = evidence
        if not has_weights(folder):
            self._weightless[str(folder)] = evidence
        self._told.append((f"{cell.workload} {cell.size}: {evidence.reason}", log))

    def fault(self) -> CellFault:
        """What a user reads when nothing at all could be prepared: each reason once."""
        logs: dict[str, Path] = {}
        for text, log in self._told:  # in float64 and as it is timed: two workloads' sizes, often one reason
            logs.setdefault(text.partition(": ")[2], log)
        return CellFault(
            "nothing can be measured, because the weights and the reference cannot be made: "
            + "; ".join(dict.fromkeys(text for text, _ in self._told)),
            "with the whole error: " + ", ".join(str(log) for log in logs.values()),
        )

    def process(self, cell: Cell, folder: Path, of: Cell | None = None) -> Process:
        """The timing process that ``cell`` never had, with the reason of the job that failed: a row that was planned
        stays in the session. ``of``: the cell that could not be made, where it is another one."""
        evidence = self._evidence(of or cell, folder)
        assert evidence is not None
        return never_timed(cell, evidence)

    def _evidence(self, cell: Cell, folder: Path) -> Evidence | None:
        return self._weightless.get(str(folder)) or self._why.get(_key(cell, folder))


def never_timed(cell: Cell, evidence: Evidence) -> Process:
    """A timing process that a row never had, because what it needed ended with this ``evidence``. It took no time, and
    stands outside the blocks."""
    return Process(cell, "time", -1, 0, time.time(), 0.0, 0.0, replace(evidence, versions={}))


def _key(cell: Cell, folder: Path) -> tuple[str, str]:
    return str(folder), reference_name(cell.contract.resident())
