"""One process of each row hands its state out to be taken again: which one, and the reference's answer."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

from detente.records.cell import Cell
from detente.records.folders import cache_folder
from detente.records.session import Process
from detente.records.window import Replay
from detente.session.underway import Underway, is_twin

# The block of a row that is taken again is one of the first so many: a session that decides early has had it.
_AMONG = 5
# Under a budget one of the first three: it may hold no more.
_AMONG_IN_BUDGET = 3


def block_to_replay(under: Underway, cell: Cell) -> int:
    """The number of the row's block whose window is taken again; drawn from the session, so that no row knows it."""
    request = under.request
    among = min(request.blocks or _AMONG, _AMONG_IN_BUDGET if request.budget_s else _AMONG)
    return random.Random(f"{under.ledger.session.id}/{cell.key}").randrange(among)


def places_of(under: Underway, cell: Cell, block: int) -> int:
    """What seeds the places in a window where state is handed out: of every process another number."""
    return random.Random(f"{under.ledger.session.id}/{block}/{cell.key}").getrandbits(48)


def handed_folder(under: Underway, cell: Cell, block: int) -> Path | None:
    """Where this process leaves what is taken again; None where it is another's turn. Later blocks take the turn of a
    process that left nothing. A twin is the stack that it repeats."""
    session = under.ledger.session
    if is_twin(cell) or block < block_to_replay(under, cell):
        return None
    if any(p.evidence.window is not None and p.evidence.window.replay is not None for p in session.of(cell)):
        return None
    return cache_folder() / "handed" / session.id / f"{block}-{abs(hash(cell.key)):x}"


def with_replay(under: Underway, process: Process, folder: Path | None) -> Process:
    """The process with the reference's answer written into its window. The folder is gone afterwards."""
    if folder is None:
        return process
    try:
        window = process.evidence.window
        if process.evidence.status != "ok" or window is None:
            return process
        cell = process.cell
        contract = replace(cell.contract, feed="resident")
        maker = Cell(cell.workload, cell.size, "torch-eager", contract, cell.device, "replay")
        taken = under.process("replay", maker, handed=str(folder))
        found = taken.evidence.window
        replay = found.replay if found is not None else None
        if replay is None:
            replay = Replay(0, 0, reason=taken.evidence.reason or "the reference left no answer")
        evidence = replace(process.evidence, window=replace(window, replay=replay))
        return replace(process, evidence=evidence)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
