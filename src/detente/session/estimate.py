"""How long the next process of a cell will probably take, from what was measured so far."""

from __future__ import annotations

from detente.records.cell import Cell
from detente.records.session import Session

# What a first step takes from a warm cache, as a share of the cold one (Inductor 0.2, JAX 0.35), and what a process
# takes besides its phases: the interpreter, reading weights, comparing three steps.
_WARM_SHARE = 0.35
_PROCESS_S = 5.0
# Nothing is known: a small workload on a small machine.
_UNKNOWN_S = 20.0


class Estimates:
    """Seconds per kind of process and cell. The last of its kind counts, else what its parts took."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = {}

    def saw(self, kind: str, cell: Cell, wall_s: float) -> None:
        """A process of this kind and cell took so long."""
        self._seconds[kind, cell.key] = wall_s

    def mean(self) -> float | None:
        """Seconds of an average process; None before the first."""
        return sum(self._seconds.values()) / len(self._seconds) if self._seconds else None

    def next(self, kind: str, cell: Cell, session: Session) -> float:
        """Seconds that the next process of ``kind`` on ``cell`` will probably take."""
        evidence = [p.evidence for p in session.of(cell)]
        known = self._seconds.get((kind, cell.key))
        if kind == "time" and len(evidence) == 1:
            # The first process also compiled cold, proved gradients and ran every probe; the next ones do not.
            e = evidence[0]
            first = (e.first_s or 0) * (_WARM_SHARE if e.compile.cache_state == "miss" else 1)
            steady = sum(s.wall_ns for s in e.samples) / 1e9
            return _PROCESS_S + (e.import_s or 0) + (e.build_s or 0) + first + 4 * (e.third_s or 0) + steady
        if known is not None:
            return known
        if kind == "memory" and evidence:
            e = evidence[-1]
            return 3.0 + (e.import_s or 0) + (e.build_s or 0) + (e.first_s or 0) + (e.second_s or 0)
        return _UNKNOWN_S
