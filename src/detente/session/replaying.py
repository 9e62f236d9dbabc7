"""One process of each row hands its state out to be taken again: which one, and the reference's answer."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

from detente.records.cell import Cell
from detente.records.folders import cache_folder
from detente.records.session import Process
from detente.records.window import Replay
from detente.session.underway import Stopped, Underway, is_twin

# The block of a row that is taken again is one of the first so many: a session that decides early has had it.
_AMONG = 5
# 0 leaves replays out, for a quick look; the rows then say that what was timed later is not checked.
VARIABLE = "DETENTE_REPLAY"
_DRAW = random.SystemRandom()
# How often a process is taken again whose row was already.
_AGAIN = 0.1
# Under a budget one of the first three: it may hold no more.
_AMONG_IN_BUDGET = 3


class Turns:
    """Whose window is taken again: of each row one process, at a block that is drawn from the system and written down
    nowhere, so that no stack can know its turn."""

    def __init__(self, under: Underway) -> None:
        self._under = under
        self._blocks: dict[str, int] = {}

    def folder(self, cell: Cell, block: int) -> Path:
        """Where a process may leave what is taken again: each has one, also those whose turn it is not."""
        name = hashlib.sha256(f"{block}/{cell.key}".encode()).hexdigest()[:16]
        return cache_folder() / "handed" / self._under.ledger.session.id / name

    def has(self, cell: Cell, block: int) -> bool:
        """Whether it is this process's turn. Later blocks take the turn of a process that left nothing, and now and
        then another one. A twin is the stack that it repeats."""
        if os.environ.get(VARIABLE) == "0":
            return False
        request, session = self._under.request, self._under.ledger.session
        if cell.key not in self._blocks:
            among = min(request.blocks or _AMONG, _AMONG_IN_BUDGET if request.budget_s else _AMONG)
            self._blocks[cell.key] = _DRAW.randrange(among)
        if is_twin(cell) or block < self._blocks[cell.key]:
            return False
        windows = (p.evidence.window for p in session.of(cell))
        if any(w is not None and w.replay is not None for w in windows):
            # Once is not the last time: a row that knew itself safe could change its mind.
            return _DRAW.random() < _AGAIN
        return True


def with_replay(under: Underway, process: Process, folder: Path, wanted: bool) -> Process:
    """The process with the reference's answer written into its window, where it was ``wanted``. The folder is gone
    afterwards."""
    try:
        window = process.evidence.window
        if not wanted or process.evidence.status != "ok" or window is None:
            return process
        cell = process.cell
        contract = replace(cell.contract, feed="resident")
        maker = Cell(cell.workload, cell.size, "torch-eager", contract, cell.device, "replay")
        try:
            taken = under.process("replay", maker, handed=str(folder))
        except Stopped:
            return process  # it finished before the user interrupted, and is kept; the next one stops the session
        found = taken.evidence.window
        replay = found.replay if found is not None else None
        if replay is None:
            replay = Replay(0, 0, reason=taken.evidence.reason or "the reference left no answer")
        evidence = replace(process.evidence, window=replace(window, replay=replay))
        return replace(process, evidence=evidence)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
