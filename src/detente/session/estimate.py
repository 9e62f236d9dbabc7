"""How long the next process of a cell will probably take, from what was measured so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from detente.records.cell import Cell
from detente.records.kinks import Kinks
from detente.records.session import Process, Session
from detente.session.layout import is_twin
from detente.worker.fair import fair_runs

# What a first step takes from a warm cache, as a share of the cold one (Inductor 0.2, JAX 0.35).
_WARM_SHARE = 0.35
# Phases that a row's first process has to itself: it proves gradients and runs every probe; and those that one process
# of many has: the session's first writes the memory of the others, and a row's turn to be taken again writes states.
_FIRST_ALONE = ("proof", "probes", "memory", "keep")
# How often a row's process is taken again when one of them was already.
AGAIN = 0.1
# What these take in a later process, and what one takes whose phases nobody recorded: the interpreter, reading weights,
# comparing states.
_PROCESS_S = 2.0
_UNPHASED_S = 5.0
# Nothing is known: a small workload on a small machine.
_UNKNOWN_S = 20.0
# What taking a stretch again builds: the reference in fp64, and fair runs at the row's precision.
_EXACT = 1


class Estimates:
    """Seconds per kind of process and cell. The last of its kind counts, else what its parts took."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = {}
        self._expected: dict[str, float] = {}

    def expect(self, first_s: Mapping[str, float]) -> None:
        """What the first process of a cell will take, by the cell's key, as far as anybody can tell."""
        self._expected = dict(first_s)

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
            return _second(session.of(cell)[0])
        if known is not None:
            return known
        if kind == "memory" and evidence:
            e = evidence[-1]
            return 3.0 + (e.import_s or 0) + (e.build_s or 0) + (e.first_s or 0) + (e.second_s or 0)
        return self._expected.get(cell.key, _UNKNOWN_S) if kind == "time" else _UNKNOWN_S


def replays_s(cells: Sequence[Cell], session: Session) -> float:
    """Seconds that taking again will probably cost the next blocks of these cells, whatever their number: each row's
    turn comes once, and then seldom. Before anything was taken again it is guessed from what ran; 0 before that."""
    done = [p for p in session.processes if p.kind == "replay" and p.evidence.replays]
    rows = [c for c in cells if not is_twin(c)]
    if done:
        each = sum(p.wall_s for p in done) / sum(len(p.evidence.replays) for p in done)
    else:
        each = max((_replay(session.of(c)) for c in rows), default=0.0)
    taken = [any(session.replays_of(c, p.block) for p in session.of(c)) for c in rows]
    return each * sum(AGAIN if once else 1.0 for once in taken)


def _replay(ran: Sequence[Process]) -> float:
    """Seconds for one row, by what its own process took: the reference is built three times (fp64, and both orders of
    the batch at the row's precision), and a step in fp64 takes about three of its own. GPT-2 Small: guessed 20 to 26,
    measured 16 to 29."""
    e = ran[0].evidence if ran else None
    if e is None or e.status != "ok" or e.window is None:
        return 0.0
    references = _EXACT + len(fair_runs(e.kinks or Kinks()))
    return references * (e.build_s or 0.0) + (3 + references) * (e.third_s or 0.0)


def _second(first: Process) -> float:
    """Seconds of a row's second process, by its first: that one also compiled cold."""
    e = first.evidence
    saved = (e.first_s or 0) * (1 - _WARM_SHARE) if e.compile.cache_state == "miss" else 0.0
    if first.phases:
        return _PROCESS_S + sum(s for name, s in first.phases.items() if name not in _FIRST_ALONE) - saved
    steady = sum(s.wall_ns for s in e.samples) / 1e9
    steps = (e.first_s or 0) - saved + 4 * (e.third_s or 0)
    return _UNPHASED_S + (e.import_s or 0) + (e.build_s or 0) + steps + steady
