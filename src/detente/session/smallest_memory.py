"""The smallest cap under which a row still runs three steps: the one memory figure that compares across allocators,
because it asks none of them.

A cap is one on data memory (RLIMIT_DATA), of a process of its own each. The search begins at what was planned, and ends
when the smallest cap that held and the largest that did not lie within 5 %, or after six workers. Beside it stands the
cap of a step that does nothing worth a name (``gemm`` at tiny): what the libraries take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from detente.records.cell import Cell
from detente.records.contract import CONTRACTS
from detente.records.evidence import Evidence
from detente.records.session import Process
from detente.session.known_plan import known_plan
from detente.session.layout import is_twin
from detente.session.proving import prepare
from detente.session.underway import Stopped, Underway

WITHIN = 1.05
MOST_WORKERS = 6
# Where nothing was planned: what an interpreter with a framework takes.
_UNPLANNED = 600 * 2**20
LABEL, BELOW, EMPTY = "smallest_cap", "smallest_cap_below", "smallest_cap_empty"


class Search:
    """Caps to try, in turn: ``next`` until it gives none, ``tell`` of each whether it held."""

    def __init__(self, guess: int) -> None:
        self.held: int | None = None
        self.failed: int | None = None
        self.tried = 0
        self._first = guess

    def next(self) -> int | None:
        if self.tried == MOST_WORKERS:
            return None
        if self.held is None:
            # Of a plan that was too small by half two steps reach what is needed.
            return self._first if self.failed is None else int(self.failed * 1.4)
        if self.failed is None:
            return int(self.held * 0.85)
        return int((self.held * self.failed) ** 0.5) if self.held > self.failed * WITHIN else None

    def tell(self, cap: int, held: bool) -> None:
        self.tried += 1
        if held:
            self.held = cap
        else:
            self.failed = cap


def run_smallest(under: Underway) -> None:
    """The smallest cap of every row, where the request asks for it."""
    if not under.request.smallest_memory:
        return
    empty: dict[str, int | None] = {}
    for cell in (c for c in under.alive() if not is_twin(c)):
        if under.ledger.session.every(cell, "smallest"):
            continue
        if cell.stack not in empty:
            plain = Cell("gemm", "tiny", cell.stack, CONTRACTS["gradient"], cell.device, cell.label)
            prepare(under, [plain])
            base = known_plan(cell).get("planned_base")
            found = _search(under, plain, base, "an empty step")
            empty[cell.stack] = found.evidence.memory[LABEL] if found is not None else None
        process = _search(under, cell, known_plan(cell).get("planned_process"), "a step")
        if process is None:
            continue
        if (least := empty[cell.stack]) is not None:
            memory = {**process.evidence.memory, EMPTY: least}
            process = replace(process, evidence=replace(process.evidence, memory=memory))
        under.ledger.keep(process)


def _search(under: Underway, cell: Cell, planned: int | None, what: str) -> Process | None:
    """The search's last worker that held, with the caps that were found; None where none held."""
    search, held = Search(int((planned or _UNPLANNED) * 1.05)), None
    for cap in _caps(under, search):
        title = f"{cell.workload} {cell.size} {cell.label}: {what} under {cap / 1e9:.3g} GB"
        under.tally.tell("start", title, cell=cell.key)
        spawned = under.workers.run("smallest", cell, lambda phase: None, cap=cap)
        if spawned.killed_by_user:
            raise Stopped
        evidence = spawned.evidence
        # However it ended: the cap is all that differs between these workers, and short of memory a library may crash
        # before it says so (SIGSEGV, a SystemError without a text).
        search.tell(cap, evidence.status == "ok")
        how = (
            "held"
            if evidence.status == "ok"
            else "ran out"
            if evidence.status == "oom"
            else evidence.reason[:80]
        )
        under.tally.tell("end", f"{title}: {how}", cell=cell.key)
        if evidence.status == "ok":
            held = spawned
    if held is None or search.held is None:
        under.tally.say(
            f"{cell.label}: {what} ran out of memory under every cap that was tried, the last of them "
            f"{(search.failed or 0) / 1e9:.3g} GB"
        )
        return None
    memory = {LABEL: search.held, **({BELOW: search.failed} if search.failed is not None else {})}
    evidence = Evidence(
        "ok", "done", memory=memory, errors=held.evidence.errors, versions=held.evidence.versions
    )
    return Process(cell, "smallest", -1, 0, held.started, held.wall_s, held.foreign, evidence)


def _caps(under: Underway, search: Search) -> Iterator[int]:
    while (cap := search.next()) is not None:
        if under.interrupts.count:
            raise Stopped
        yield cap
