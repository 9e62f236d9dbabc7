"""One process of each row hands its state out to be taken again: which one, and the reference's answer."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from detente.records.cell import Cell
from detente.records.folders import cache_folder
from detente.records.session import Process, replay_name
from detente.records.window import Replay
from detente.session.estimate import AGAIN
from detente.session.layout import is_twin
from detente.session.underway import Underway
from detente.stacks.catalogue import maker_of
from detente.workloads.catalogue import find_workload

# The block of a row that is taken again is one of the first so many: a session that decides early has had it.
_AMONG = 5
# 0 leaves replays out, for a quick look; the rows then say that what was timed later is not checked.
VARIABLE = "DETENTE_REPLAY"
_DRAW = random.SystemRandom()
_ATTEMPTS = 2
# Under a budget one of the first three: it may hold no more.
_AMONG_IN_BUDGET = 3


@dataclass(frozen=True)
class Handed:
    """Where a process left what it handed out, and what the parent heard it say of that (``Window.kept``)."""

    folder: Path
    kept: tuple[str, ...]


class Turns:
    """Whose window is taken again: of each row one process, at a block that is drawn from the system and written down
    nowhere, so that no stack can know its turn. What was handed out in a block is taken again at its end, the rows of a
    contract in one process."""

    def __init__(self, under: Underway) -> None:
        self._under = under
        self._blocks: dict[str, int] = {}
        self._owed: dict[Cell, dict[str, Handed]] = {}

    def folder(self, cell: Cell, block: int) -> Path:
        """Where a process may leave what is taken again: each has one, also those whose turn it is not."""
        name = hashlib.sha256(f"{block}/{cell.key}".encode()).hexdigest()[:16]
        return self._folder() / name

    def has(self, cell: Cell, block: int) -> bool:
        """Whether it is this process's turn. Later blocks take the turn of a process that left nothing, and now and
        then another one. A twin is the stack that it repeats."""
        if os.environ.get(VARIABLE) == "0":
            return False
        request, session = self._under.request, self._under.ledger.session
        # Under a budget all rows of a contract in one block: the reference starts once.
        mine = cell.group if request.budget_s else cell.key
        if mine not in self._blocks:
            among = min(request.blocks or _AMONG, _AMONG_IN_BUDGET if request.budget_s else _AMONG)
            self._blocks[mine] = _DRAW.randrange(among)
        if is_twin(cell) or block < self._blocks[mine]:
            return False
        tried = [found for p in session.of(cell) if (found := session.replays_of(cell, p.block))]
        if any(not replay.reason for found in tried for replay in found):
            # Once is not the last time: a row that knew itself safe could change its mind.
            return _DRAW.random() < AGAIN
        # What could not be kept or taken again is tried once more: a full disk may pass, a reference too large not.
        return len(tried) < _ATTEMPTS

    def over(self, process: Process, folder: Path, wanted: bool) -> None:
        """A process ended; what it handed out waits for the block's end, or is gone."""
        if not wanted or process.evidence.status != "ok" or process.evidence.window is None:
            shutil.rmtree(folder, ignore_errors=True)
            return
        cell = process.cell
        contract = cell.contract.resident()
        by = maker_of(find_workload(cell.workload))
        maker = Cell(cell.workload, cell.size, by, contract, cell.device, "replay")
        handed = Handed(folder, process.evidence.window.kept)
        self._owed.setdefault(maker, {})[replay_name(cell, process.block)] = handed

    def take(self, block: int) -> None:
        """Take again what this block's processes handed out. Raises Stopped when the user interrupted: the rows stand
        as they are, and say that what they timed later is not checked."""
        owed, self._owed = self._owed, {}
        for maker, all_of in owed.items():
            folders = {name: str(handed.folder) for name, handed in all_of.items()}
            kept = {name: handed.kept for name, handed in all_of.items()}
            process = self._under.process("replay", maker, block=block, replays=folders, kept=kept)
            self._under.ledger.keep(_answered(process, folders))
            for handed in all_of.values():
                shutil.rmtree(handed.folder, ignore_errors=True)

    def forget(self) -> None:
        """Nothing that was handed out outlives its session."""
        shutil.rmtree(self._folder(), ignore_errors=True)

    def _folder(self) -> Path:
        return cache_folder() / "handed" / self._under.ledger.session.id


def _answered(process: Process, folders: dict[str, str]) -> Process:
    """With an answer for every row: the reference's own failure is one too."""
    reason = process.evidence.reason or "the reference left no answer"
    missing = {n: (Replay(0, 0, reason=reason),) for n in folders if n not in process.evidence.replays}
    replays = {**process.evidence.replays, **missing}
    return replace(process, evidence=replace(process.evidence, replays=replays))
